"""Source of the modules a function depends on: where it lies, what it imports, what its code is."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


def read(path: Path) -> Source:
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
    digest = read(path).digest
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


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def code_digest(path: Path) -> str:
    """Digest a module's code, whatever its comments, docstrings and formatting."""
    return _digest(_parsed(path))


def _parsed(path: Path) -> ast.Module:
    """A module without docstrings and other statements that are a string."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]  # it has one
    return tree


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
