"""Public names of a package, stated once in its stub and loaded on first use (Scientific Python's SPEC 1)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module


def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Give a package's ``__getattr__``, ``__dir__`` and ``__all__``, read from the imports of its ``__init__.pyi``.

    Example:
        >>> import accountant
        >>> load, names, public = attach_stub("accountant", accountant.__file__)
        >>> load("Gaussian") is accountant.Gaussian, "Gaussian" in names(), "Gaussian" in public
        (True, True, True)
    """
    with open(f"{file}i", encoding="utf-8") as stub:
        imports = [node for node in ast.parse(stub.read()).body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname or alias.name: (node.module, alias.name) for node in imports for alias in node.names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        if module == package:
            return import_module(f"{package}.{attribute}")
        owner = import_module(str(module))
        return getattr(owner, attribute) if hasattr(owner, attribute) else import_module(f"{module}.{attribute}")

    return load, lambda: sorted(homes), sorted(homes)
