"""Digest of the code that makes a run's numbers, so that a result of older code is never taken for today's.

It serves REUSE only. Resuming, ledger and receipts bind a run's settings: an upgrade of
numpy must not break a resume, and no hash of private code is published.

Of the user's own modules code counts, not text: comments, docstrings and formatting never change their digests.

    ======================  ====================================================================
    part of a key           taken from
    ======================  ====================================================================
    the objective's module  its source, and that of whatever it imports, transitively, from folders
                            on the path that are no installation
    privbo and accountant   every installed source file, byte by byte: parsing them would take seconds
    versions                python, numpy, torch, scipy, scikit-learn, whatever else is imported
    fingerprint             what the user names for data
    ======================  ====================================================================

Code is named as ``module:function``, so that whatever the function is follows from the source of its module and of
what that imports. A function that stands in no module has no digest, and what it made is never reused.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privbo.runs.sources import load_function

TOOLKIT = ("privbo", "accountant")
CODE = "privbo's code"
"""Name of the digest of the installed sources of privbo and accountant."""
_VERSIONS = ("privbo", "numpy", "scipy", "torch", "gpytorch", "numba", "scikit-learn")
_DRAWN = ("matplotlib", "rich")  # what draws makes no number
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
        found = {"module": list[str](), "version": list[str](), "": list[str]()}
        for part in sorted(self.parts.keys() | older.parts.keys()):
            before, now = older.parts.get(part, "none"), self.parts.get(part, "none")
            kind, _, name = part.partition(" ")
            words = {"module": name, "version": f"{name} {before} -> {now}"}.get(kind, f"{part} changed")
            if before != now:
                found.get(kind, found[""]).append(words)
        code = [f"the objective's code changed ({', '.join(found['module'])})"] if found["module"] else []
        versions = [f"versions changed: {', '.join(found['version'])}"] if found["version"] else []
        return (*code, *found[""], *versions)

    @property
    def modules(self) -> dict[str, str]:
        """Digests of the user's own modules by name."""
        return {k.removeprefix("module "): v for k, v in self.parts.items() if k.startswith("module ")}


def code_key(*references: str, fingerprint: str | None = None) -> CodeKey:
    """Digest the code behind functions and classes.

    Args:
        references: Whatever makes the numbers, as ``module:function``: an objective, a problem's factory, an
            algorithm's class. Their modules are imported.
        fingerprint: A name for the data that the code reads; another name is another key.

    Returns:
        The key; its ``reason`` says why there is no digest where there is none.

    Example:
        >>> code_key("math:sqrt").digest == code_key("math:sqrt").digest
        True
    """
    found, edited = dict[str, Path](), list[str]()
    parts = dict(toolkit()) | ({} if fingerprint is None else {"the fingerprint": fingerprint})
    for reference in references:
        load_function(reference, "code")
        found |= _loaded_files(reference.partition(":")[0], parts)
    todo = list(found)
    for name in todo:
        path, (tree, digest) = found[name], _parsed(found[name])
        parts[f"module {name}"] = digest[:16]
        if _edited_since_loaded(name, path, digest):
            edited.append(name)
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        for imported in _imports(tree, package, path.parent):
            here = _imported_files(imported, _root(name, path), parts)
            todo += [module for module in here if module not in found]
            found = here | found
    words = f"{', '.join(sorted(edited))} was edited after this process loaded it; start a new one"
    return CodeKey(parts=parts, reason=words if edited else None, edited=tuple(sorted(edited)))


@functools.cache
def toolkit() -> Mapping[str, str]:
    """Digest the installed sources of privbo and accountant, and name the versions they run on."""
    base = Path(__file__).parent.parent.parent
    files = sorted(path for name in TOOLKIT for path in (base / name).rglob("*.py"))
    digests = [(str(path.relative_to(base)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    versions = {f"version {name}": version for name in _VERSIONS if (version := version_of(name)) is not None}
    return {CODE: _hashed(digests)[:16], "version python": platform.python_version(), **versions}


@functools.cache
def version_of(name: str) -> str | None:
    """Version of a distribution, or of the one that holds an importable package of that name."""
    for found in (str, _distribution):  # the second one looks through all that is installed
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(found(name))
    return None


def forget(modules: Iterable[str]) -> None:
    """Drop modules that this process has loaded, so that the next import reads their files."""
    for name in modules:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def _imports(tree: ast.Module, package: list[str], folder: Path) -> Iterator[str]:
    """Dotted names a module may import; of an import whose name is computed, all modules in its folder."""
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


def _root(name: str, path: Path) -> Path:
    """The folder from which a file is imported by a name."""
    return path.parents[len(name.split(".")) - (0 if path.name == "__init__.py" else 1)]


def _loaded_files(module: str, parts: dict[str, str]) -> dict[str, Path]:
    """Files of a module of the user's own that is loaded; of another one the package is noted."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or module.partition(".")[0] in TOOLKIT or _in_installation(path := Path(file).resolve()):
        _note_package(module, parts)
        return {}
    return _files(_root(module, path), module)


def _imported_files(name: str, root: Path, parts: dict[str, str]) -> dict[str, Path]:
    """Files that an import runs, of the user's own; of another one the package is noted."""
    if name.partition(".")[0] in TOOLKIT:
        return {}  # counted as a whole
    folders = [Path(entry).resolve() for entry in sys.path if Path(entry).is_dir()]
    for base in (root, *(folder for folder in folders if not _in_installation(folder))):
        if found := _files(base, name):
            return found
    _note_package(name, parts)
    return {}


def _note_package(module: str, parts: dict[str, str]) -> None:
    """Note the version of the package that a module belongs to."""
    top = module.partition(".")[0]
    known = top in sys.stdlib_module_names or top in (*TOOLKIT, *_DRAWN)
    if not known and (version := version_of(top)) is not None:
        parts.setdefault(f"version {_distribution(top)}", version)


def _in_installation(path: Path) -> bool:
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(folder) for folder in folders)


def _edited_since_loaded(module: str, path: Path, digest: str) -> bool:
    """Whether this process holds older code of a module than its file does.

    What is loaded is taken for the code that the file held when it was first asked for, unless the
    compiled file next to it, which Python writes on loading, is of another state of the source.
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


def _distribution(package: str) -> str:
    """Name of the distribution that holds an importable package."""
    return next(iter(_distributions().get(package, ())), package)


_distributions = functools.cache(importlib.metadata.packages_distributions)


def _parsed(path: Path) -> tuple[ast.Module, str]:
    """A module without docstrings and other statements that are a constant, and its digest."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            kept = [line for line in body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
            node.body = kept  # type: ignore[attr-defined]  # it has one
    return tree, hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
