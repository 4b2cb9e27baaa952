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
defaults and its closure; an object by what pickle would make it of. A C function, or an object that
pickle refuses, can't be told from its own past: it has no digest, and what it made is never reused.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import dis
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

TOOLKIT = ("privbo", "accountant")
CODE = "privbo's code"
"""Name of the digest of the installed sources of privbo and accountant."""
_VERSIONS = ("privbo", "numpy", "torch", "scipy", "scikit-learn")
_DRAWN = ("matplotlib", "rich")  # what draws makes no number
_UNTOLD = {"__doc__", "__dict__", "__weakref__", "_abc_impl"}  # of a class, what makes no number
_LOADED: dict[str, tuple[object, str]] = {}


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
        modules, versions, found = list[str](), list[str](), list[str]()
        for part in sorted(self.parts.keys() | older.parts.keys()):
            before, now = older.parts.get(part, "none"), self.parts.get(part, "none")
            kind, _, name = part.partition(" ")
            if before == now:
                continue
            if kind == "module":
                modules.append(name)
            elif kind == "version":
                versions.append(f"{name} {before} -> {now}")
            else:
                found.append(f"{part} changed")
        if modules:
            found.insert(0, f"the objective's code changed ({', '.join(modules)})")
        return (*found, *([f"versions changed: {', '.join(versions)}"] if versions else []))

    @property
    def modules(self) -> dict[str, str]:
        """Digests of the user's own modules by name."""
        return {k.removeprefix("module "): v for k, v in self.parts.items() if k.startswith("module ")}


def code_key(*roots: object, fingerprint: str | None = None) -> CodeKey:
    """Digest the code behind functions, classes and plain values.

    Args:
        roots: Whatever makes the numbers: an objective, a problem's factory, an algorithm's class.
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
        try:
            states.append(reader.state(root))
        except (TypeError, ValueError) as error:  # pickle's refusals
            reason = f"a {type(root).__module__}.{type(root).__qualname__} can't be told from its own past ({error})"
        if isinstance(root, types.BuiltinFunctionType):
            reason = f"{root.__module__}.{root.__qualname__} has no Python source"
    if edited := reader.follow():
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


@functools.cache
def version_of(name: str) -> str | None:
    """Version of a distribution, or of the one that holds an importable package of that name."""
    for candidate in (name, _distribution(name)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(candidate)
    return None


def forget(modules: Iterable[str]) -> None:
    """Drop modules that this process has loaded, so that the next import reads their files."""
    for name in modules:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@dataclass(kw_only=True)
class _Reader:
    """Modules that were met, and what is known of them."""

    parts: dict[str, str] = field(default_factory=dict)
    modules: dict[str, Path] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)

    def state(self, value: object) -> object:
        """Tell a value from another by nested tuples; modules that say the rest are noted.

        Raises:
            TypeError: If nothing does.
        """
        if value is None or isinstance(value, (bool, int, float, complex, str, type(...))):
            return (type(value).__name__, repr(value))
        if isinstance(value, bytes):
            return hashlib.sha256(value).hexdigest()
        if id(value) in self.busy:
            return "itself"
        self.busy.add(id(value))
        try:
            return self._inside(value)
        finally:
            self.busy.discard(id(value))

    def _inside(self, value: object) -> object:  # noqa: PLR0911  # one line per kind of value
        match value:
            case tuple() | list():
                return (type(value).__name__, *map(self.state, value))
            case set() | frozenset():
                return (type(value).__name__, *sorted(repr(self.state(item)) for item in value))
            case Mapping():
                return ("mapping", *((self.state(key), self.state(item)) for key, item in value.items()))
            case types.ModuleType():
                return self._module(value.__name__)
            case types.FunctionType():
                return self._function(value)
            case type():
                return self._class(value)
            case property():
                return self.state((value.fget, value.fset, value.fdel))
            case types.BuiltinFunctionType() if isinstance(value.__self__, types.ModuleType):
                return (self._module(value.__self__.__name__), value.__name__)
        if callable(inner := getattr(value, "__wrapped__", None)):  # functools.cache and its kin
            return self.state(inner)
        reduce = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(made, str):
            return (self._module(getattr(value, "__module__", None) or type(value).__module__), made)
        return tuple(self.state(tuple(part) if isinstance(part, Iterator) else part) for part in made)

    def _function(self, function: types.FunctionType) -> object:
        cells = tuple(self.state(cell.cell_contents) for cell in function.__closure__ or ())
        inner = self.state(getattr(function, "__wrapped__", None))
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        code = function.__code__
        if file is not None and Path(file).resolve() == Path(code.co_filename).resolve():
            return (self._module(function.__module__), function.__qualname__, cells, inner)
        read = {name: function.__globals__[name] for name in _globals(code) if name in function.__globals__}
        defaults = (function.__defaults__, function.__kwdefaults__)
        return (self._bytecode(code, function.__doc__), cells, self.state(defaults), inner, self.state(read))

    def _bytecode(self, code: types.CodeType, text: str | None = None) -> object:
        """Instructions without line numbers, file names and the docstring."""
        inner = (c for c in code.co_consts if text is None or c != text)
        constants = tuple(self._bytecode(c) if isinstance(c, types.CodeType) else self.state(c) for c in inner)
        return (code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)

    def _class(self, kind: type) -> object:
        """A class by its name where a file tells its code, else by its members."""
        is_told = kind.__module__ != "__main__" and "<locals>" not in kind.__qualname__
        if _is_foreign(kind.__module__) or (is_told and own_file(kind.__module__) is not None):
            return (self._module(kind.__module__), kind.__qualname__)
        members = {name: vars(kind)[name] for name in sorted(vars(kind).keys() - _UNTOLD)}
        return (kind.__qualname__, self.state(kind.__bases__), self.state(members))

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
            self.parts.setdefault(f"version {_distribution(top)}", version)

    def follow(self) -> list[str]:
        """Read every module that was noted, and what those import, until nothing is new; tells which were edited."""
        done, edited = set[str](), list[str]()
        while todo := self.modules.keys() - done:
            for name in sorted(todo):
                done.add(name)
                path = self.modules[name]
                tree = _parsed(path)
                digest = _digest(tree)
                self.parts[f"module {name}"] = digest[:16]
                if _edited_since_loaded(name, path, digest):
                    edited.append(name)
                package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
                root = path.parents[len(name.split(".")) - (0 if path.name == "__init__.py" else 1)]
                for imported in _imports(tree, package, path.parent):
                    self._imported(imported, root)
        return sorted(edited)

    def _imported(self, imported: str, root: Path) -> None:
        if imported.partition(".")[0] in TOOLKIT:
            return  # counted as a whole
        folders = [Path(entry).resolve() for entry in sys.path if Path(entry).is_dir()]
        own = [folder for folder in folders if not _in_installation(folder)]
        found = next((hit for base in (root, *own) if (hit := _files(base, imported))), None)
        if found is None:
            self._package(imported)
        else:
            self.modules |= {module: path for module, path in found.items() if module not in self.modules}


def _imports(tree: ast.Module, package: list[str], folder: Path) -> Iterator[str]:
    """Dotted names a module may import; of an import whose name is computed, all modules beside it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else []
                base = [part for part in (*above, node.module) if part]
                yield from (".".join([*base, alias.name]) for alias in node.names)
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__")):
                yield from (".".join(part for part in (*package, path.stem) if part) for path in folder.glob("*.py"))


def _files(base: Path, name: str) -> dict[str, Path]:
    """Files that ``import name`` runs, with the packages above it; empty where ``base`` doesn't hold it."""
    found: dict[str, Path] = {}
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        place, dotted = base.joinpath(*parts[:depth]), ".".join(parts[:depth])
        there = [path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()]
        if there:
            found[dotted] = there[0]
        elif not place.is_dir():  # a name inside the module above
            break
    return found


def own_file(module: str) -> Path | None:
    """Source of a module of the user's own; None for installed ones, the toolkit, and those without a file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if _is_foreign(module) or file is None or not file.endswith(".py") else Path(file).resolve()


def _is_foreign(module: str) -> bool:
    """Whether a module belongs to Python, to an installed package or to the toolkit."""
    top, file = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None)
    if top in TOOLKIT or module == "__main__":
        return module != "__main__"
    return top in sys.stdlib_module_names if file is None else _in_installation(Path(file).resolve())


def _in_installation(path: Path) -> bool:
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(folder) for folder in folders)


def _edited_since_loaded(module: str, path: Path, digest: str) -> bool:
    """Whether this process holds older code of a module than its file does.

    What is loaded is taken for the code that the file held when it was first asked for, unless the
    compiled file beside it, which Python writes on loading, is of another state of the source.
    """
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if spec is None:
        return False
    known_spec, known_digest = _LOADED.get(module, (None, ""))
    if known_spec is spec:  # importlib.reload makes another one
        return digest != known_digest
    if spec.cached is not None and not sys.dont_write_bytecode and Path(spec.cached).exists():
        flags, changed, size = struct.unpack("<III", Path(spec.cached).read_bytes()[4:16])
        now = path.stat()
        if flags == 0 and (changed, size) != (int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF):
            return True
    _LOADED[module] = (spec, digest)
    return False


@functools.cache
def _distribution(package: str) -> str:
    """Name of the distribution that holds an importable package."""
    return next(iter(importlib.metadata.packages_distributions().get(package, ())), package)


def _parsed(path: Path) -> ast.Module:
    """A module without docstrings and other statements that are a string."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]  # it has one
    return tree


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _globals(code: types.CodeType) -> list[str]:
    """Names of globals that a function, or one inside it, reads."""
    names = {str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return sorted(names.union(*(_globals(constant) for constant in inner)))


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
