"""Digest of the code that makes a run's numbers, so that a result of older code is never taken for today's.

It serves REUSE only. Resuming, ledger and receipts bind a run's settings: an upgrade of
numpy must not break a resume, and no hash of private code is published.

What counts is code, not text: comments, docstrings and formatting never change a digest.

    ======================  ====================================================================
    part of a key           taken from
    ======================  ====================================================================
    the objective's module  its source, and that of whatever it imports, transitively, from folders
                            on the path that are no installation
    privbo and accountant   every installed source file
    versions                python, numpy, torch, scipy, scikit-learn, whatever else is imported
    fingerprint             what the user names for data
    ======================  ====================================================================

A function without a source file (notebook) counts by its bytecode, the globals it reads, its
defaults and its closure. A C function or an object of unknown state can't be told from its own
past: it has no digest, and what it made is never reused.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import importlib.metadata
import platform
import struct
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TOOLKIT = ("privbo", "accountant")


def resolved(base: Path, name: str) -> dict[str, Path]:
    """Files that ``import name`` runs, with the packages above it; empty where ``base`` doesn't hold it."""
    found: dict[str, Path] = {}
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:depth])
        dotted = ".".join(parts[:depth])
        if (place / "__init__.py").is_file():
            found[dotted] = place / "__init__.py"
        elif place.with_suffix(".py").is_file():
            found[dotted] = place.with_suffix(".py")
        elif not place.is_dir():  # a name inside the module above
            break
    return found


@dataclass(frozen=True, kw_only=True)
class Source:
    """A module's code: its digest, its imports as (dots, dotted name), its classes."""

    digest: str
    imports: tuple[tuple[int, str], ...]
    computes_imports: bool
    classes: frozenset[str]


def read_source(path: Path) -> Source:
    """Read a module's source, once for every state of its file."""
    return _read_once(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _read_once(path: Path, changed: int) -> Source:  # noqa: ARG001  # the time makes an edited file another one
    tree = _parsed(path)
    imports: list[tuple[int, str]] = []
    computes = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            imports.append((node.level, module))
            imports += [(node.level, f"{module}.{a.name}".lstrip(".")) for a in node.names if a.name != "*"]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            computes |= name in ("import_module", "__import__")
    classes = frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Source(digest=_digest(tree), imports=tuple(imports), computes_imports=computes, classes=classes)


def imported_by(source: Source, name: str, path: Path) -> Iterator[str]:
    """Dotted names a module may import; of an import whose name is computed, all modules beside it."""
    package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for dots, imported in source.imports:
        above = package[: len(package) - dots + 1] if dots else []
        yield ".".join(part for part in (*above, imported) if part)
    if source.computes_imports:
        beside = (p.stem for p in path.parent.glob("*.py") if p.name != "__init__.py")
        yield from (".".join(part for part in (*package, stem) if part) for stem in beside)


def is_file_of(module: str, file: str) -> bool:
    """Whether code was read from its module's file; what a notebook defines was not."""
    source = getattr(sys.modules.get(module), "__file__", None)
    return source is not None and Path(source).resolve() == Path(file).resolve()


def own_file(module: str) -> Path | None:
    """Source of a module of the user's own; None for installed ones, the toolkit, and those without a file."""
    if module.partition(".")[0] in TOOLKIT or is_installed(module):
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file is not None and file.endswith(".py") else None


def is_installed(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"
    return any(Path(file).resolve().is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def own_folders() -> list[Path]:
    """Folders on the path that are no installation."""
    folders = dict.fromkeys(Path(entry).resolve() for entry in sys.path if Path(entry).is_dir())
    return [f for f in folders if not any(f.is_relative_to(installed) for installed in _installed_folders())]


def edited_since_loaded(module: str, path: Path) -> bool:
    """Whether this process holds older code of a module than its file does.

    What is loaded is taken for the code that the file held when it was first asked for, unless the
    compiled file beside it, which Python writes on loading, is of another state of the source.
    """
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if spec is None:
        return False
    digest = read_source(path).digest
    known_spec, known_digest = _LOADED.get(module, (None, ""))
    if known_spec is spec:  # importlib.reload makes another one
        return digest != known_digest
    if _compiled_from_another(spec.cached, path):
        return True
    _LOADED[module] = (spec, digest)
    return False


_LOADED: dict[str, tuple[object, str]] = {}


def _compiled_from_another(compiled: str | None, path: Path) -> bool:
    if compiled is None or sys.dont_write_bytecode or not Path(compiled).exists():
        return False
    with Path(compiled).open("rb") as file:
        flags, changed, size = struct.unpack("<III", file.read(16)[4:])
    now = path.stat()
    return flags == 0 and (changed, size) != (int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF)


def forget(modules: Iterable[str]) -> None:
    """Drop modules that this process has loaded, so that the next import reads their files."""
    for name in modules:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


_distributions = functools.cache(importlib.metadata.packages_distributions)


def distribution(package: str) -> str:
    """Name of the distribution that holds an importable package."""
    return next(iter(_distributions().get(package, ())), package)


@functools.cache
def version_of(name: str) -> str | None:
    """Version of a distribution, or of the one that holds an importable package of that name."""
    for candidate in (name, distribution(name)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(candidate)
    return None


def _parsed(path: Path) -> ast.Module:
    """A module without docstrings and other statements that are a string."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]  # it has one
    return tree


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


_VERSIONS = ("privbo", "numpy", "torch", "scipy", "scikit-learn")
CODE = "privbo's code"
"""Name of the digest of the installed sources of privbo and accountant."""
_DRAWN = ("matplotlib", "rich")  # what draws makes no number


@dataclass(frozen=True, kw_only=True)
class CodeKey:
    """Code that makes a number, part by part.

    Attributes:
        parts: Digest of every own module by name, of the toolkit, versions, and the fingerprint.
        reason: Reason why no result of this code can be reused; None where it can.
        edited: Modules of which this process holds older code than their files.
    """

    parts: Mapping[str, str]
    reason: str | None = None
    edited: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """Short name of the code; None where its results can't be reused."""
        return None if self.reason is not None else _hashed(sorted(self.parts.items()))[:16]

    def changes_since(self, older: CodeKey) -> tuple[str, ...]:
        """Say what differs from older code, in words a table can show.

        Example:
            >>> CodeKey(parts={"module shop": "b"}).changes_since(CodeKey(parts={"module shop": "a"}))
            ("the objective's code changed (shop)",)
        """
        if self.reason is not None:
            return (f"not reusable: {self.reason}",)
        if older.reason is not None:
            return (f"older result not reusable: {older.reason}",)
        names = self.parts.keys() | older.parts.keys()
        differing = sorted(name for name in names if self.parts.get(name) != older.parts.get(name))
        modules = [name.removeprefix("module ") for name in differing if name.startswith("module ")]
        versions = [
            f"{name.removeprefix('version ')} {older.parts.get(name, 'none')} -> {self.parts.get(name, 'none')}"
            for name in differing
            if name.startswith("version ")
        ]
        found = [f"the objective's code changed ({', '.join(modules)})"] if modules else []
        found += [f"{name} changed" for name in differing if not name.startswith(("module ", "version "))]
        return (*found, *([f"versions changed: {', '.join(versions)}"] if versions else []))

    @property
    def modules(self) -> dict[str, str]:
        """Digests of the user's own modules by name."""
        return {k.removeprefix("module "): v for k, v in self.parts.items() if k.startswith("module ")}


def code_key(*roots: object, fingerprint: str | None = None) -> CodeKey:
    """Digest the code behind functions, classes and plain values.

    Args:
        roots: Whatever makes the numbers: an objective, a problem's factory, an algorithm's class.
            ``functools.partial`` and bound methods of dataclasses are unwrapped.
        fingerprint: A name for the data that the code reads; another name is another key.

    Returns:
        The key; its ``reason`` says why there is no digest where there is none.

    Example:
        >>> import math, privbo as pb
        >>> code_key(pb.default_delta).digest == code_key(pb.default_delta).digest
        True
        >>> code_key(math.sqrt).reason
        'math.sqrt has no Python source'
    """
    reader = _Reader()
    reason, states = None, []
    for root in roots:
        if isinstance(root, types.BuiltinFunctionType):
            reason = f"{root.__module__}.{root.__qualname__} has no Python source"
            continue
        try:
            states.append(reader.state(root))
        except _UnknownStateError as error:
            reason = str(error)
    reader.follow()
    edited = sorted(name for name, path in reader.modules.items() if edited_since_loaded(name, path))
    if edited:
        reason = f"{', '.join(edited)} was edited after this process loaded it; start a new one"
    named = {} if fingerprint is None else {"the fingerprint": fingerprint}
    parts = {"the objective": _hashed(states)[:16]} | reader.parts | dict(toolkit()) | named
    return CodeKey(parts=parts, reason=reason, edited=tuple(edited))


@functools.cache
def toolkit() -> Mapping[str, str]:
    """Digest the installed sources of privbo and accountant, and name the versions they run on."""
    base = Path(__file__).parent.parent.parent
    files = sorted(path for name in TOOLKIT for path in (base / name).rglob("*.py"))
    digests = [(str(path.relative_to(base)), _digest(_parsed(path))) for path in files]
    versions = {f"version {name}": version for name in _VERSIONS if (version := version_of(name)) is not None}
    return {CODE: _hashed(digests)[:16], "version python": platform.python_version(), **versions}


class _UnknownStateError(Exception):
    """Nothing tells this value apart from its own past."""


@dataclass(kw_only=True)
class _Reader:
    """Modules that were met, and what is known of them."""

    parts: dict[str, str] = field(default_factory=dict)
    modules: dict[str, Path] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)

    def state(self, value: object) -> object:  # noqa: PLR0911  # one line per kind of value
        """Tell a value from another by nested tuples; modules that say the rest are noted.

        Raises:
            _UnknownStateError: If nothing does.
        """
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
            return (type(value).__name__, repr(value))
        if isinstance(value, (tuple, list)):
            return (type(value).__name__, *(self.state(item) for item in value))
        if isinstance(value, (set, frozenset)):
            return (type(value).__name__, *sorted(repr(self.state(item)) for item in value))
        if isinstance(value, Mapping):
            return ("mapping", *((self.state(key), self.state(item)) for key, item in value.items()))
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(np.asarray(value))
        if isinstance(value, (enum.Enum, Path, np.dtype)):
            return (type(value).__qualname__, str(value))
        if isinstance(value, types.ModuleType):
            return self._module(value.__name__)
        if isinstance(value, (types.BuiltinFunctionType, np.ufunc)) and is_installed(_home(value)):
            return (self._module(_home(value)), value.__name__)
        return self._code_of(value)

    def _array(self, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> object:
        if value.dtype.hasobject:
            raise _UnknownStateError("an array of Python objects has no digest")
        return ("array", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest())

    def _code_of(self, value: object) -> object:
        if id(value) in self.busy:
            return "itself"
        self.busy.add(id(value))
        try:
            if isinstance(value, functools.partial):
                return ("partial", self.state(value.func), self.state(value.args), self.state(value.keywords))
            if isinstance(value, types.MethodType):
                return ("method", self.state(value.__self__), self.state(value.__func__))
            if isinstance(value, types.FunctionType):
                return self._function(value)
            if isinstance(value, type):
                return self._class(value)
            return self._object(value)
        finally:
            self.busy.discard(id(value))

    def _function(self, function: types.FunctionType) -> object:
        inner = self.state(getattr(function, "__wrapped__", None))
        cells = tuple(self.state(cell.cell_contents) for cell in function.__closure__ or ())
        if is_file_of(function.__module__, function.__code__.co_filename):
            return (self._module(function.__module__), function.__qualname__, cells, inner)
        defaults = (self.state(function.__defaults__), self.state(function.__kwdefaults__))
        known, read = function.__globals__, _globals(function.__code__)
        values = tuple((name, self.state(known[name])) for name in read if name in known)
        return (self._bytecode(function.__code__, function.__doc__), cells, defaults, inner, values)

    def _bytecode(self, code: types.CodeType, text: str | None = None) -> object:
        """Instructions without line numbers, file names and the docstring."""
        inner = (c for c in code.co_consts if text is None or c != text)
        constants = tuple(self._bytecode(c) if isinstance(c, types.CodeType) else self.state(c) for c in inner)
        return (code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)

    def _class(self, kind: type) -> object:
        name = f"{kind.__module__}.{kind.__qualname__}"
        source = own_file(kind.__module__)
        installed = is_installed(kind.__module__) or kind.__module__.partition(".")[0] in TOOLKIT
        if installed or (source is not None and kind.__qualname__ in read_source(source).classes):
            return (self._module(kind.__module__), name)
        members = sorted((n, v) for n, v in vars(kind).items() if isinstance(v, types.FunctionType))
        bases = tuple(self.state(base) for base in kind.__bases__)
        return (name, bases, tuple((member, self.state(function)) for member, function in members))

    def _object(self, value: object) -> object:
        kind = type(value)
        if callable(getattr(value, "__wrapped__", None)):  # functools.cache and its kin
            return self.state(value.__wrapped__)  # type: ignore[attr-defined]  # asked for in the line above
        if dataclasses.is_dataclass(value):
            fields = tuple((f.name, self.state(getattr(value, f.name))) for f in dataclasses.fields(value))
            return (self.state(kind), kind.__qualname__, fields)
        raise _UnknownStateError(f"a {kind.__module__}.{kind.__qualname__} holds a state that nothing can compare")

    def _module(self, name: str) -> str:
        """Note a module to be read, or the version of the package it belongs to."""
        source = own_file(name)
        if source is None:
            self._package(name)
        else:
            spec = getattr(sys.modules[name], "__spec__", None)  # python -m names its module __main__
            self.modules.setdefault(name if spec is None else spec.name, source)
        return name

    def _package(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in (*TOOLKIT, *_DRAWN):
            return
        if (version := version_of(top)) is not None:
            self.parts.setdefault(f"version {distribution(top)}", version)

    def follow(self) -> None:
        """Read every module that was noted, and what those import, until nothing is new."""
        done: set[str] = set()
        while todo := [name for name in self.modules if name not in done]:
            for name in todo:
                done.add(name)
                path = self.modules[name]
                source = read_source(path)
                self.parts[f"module {name}"] = source.digest[:16]
                for imported in imported_by(source, name, path):
                    self._imported(imported, path, name)

    def _imported(self, imported: str, importer: Path, name: str) -> None:
        if imported.partition(".")[0] in TOOLKIT:
            return  # counted as a whole
        root = importer.parents[len(name.split(".")) - (0 if importer.name == "__init__.py" else 1)]
        bases = [root, *(base for base in own_folders() if base != root)]
        found = next((hit for base in bases if (hit := resolved(base, imported))), None)
        if found is None:
            self._package(imported)
        else:
            self.modules |= {module: path for module, path in found.items() if module not in self.modules}


def _home(value: object) -> str:
    return str(getattr(value, "__module__", None) or ("numpy" if isinstance(value, np.ufunc) else "builtins"))


def _globals(code: types.CodeType) -> list[str]:
    """Names of globals that a function, or one inside it, reads."""
    names = {str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return sorted(names.union(*(_globals(constant) for constant in inner)))


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
