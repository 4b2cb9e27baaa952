"""Source files that tests read: all of a package's, and the ones that no such test may miss."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEVER_MISSED = (
    "accountant/ledger/ledger.py",
    "accountant/ledger/policy.py",
    "accountant/ledger/store.py",
    "privbo/door/door.py",
    "privbo/door/mechanism.py",
    "privbo/plans/policy.py",
)
"""The ledger, the door and the policy: a test that stopped seeing them would pass for nothing."""


def sources(*folders: str) -> list[Path]:
    """Every Python file below folders of the repository, the ledger, door and policy among them where they belong."""
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    seen = {path.relative_to(ROOT).as_posix() for path in found}
    expected = {name for name in NEVER_MISSED if any(name.startswith(f"{folder}/") for folder in folders)}
    assert found
    assert expected <= seen, f"not read: {sorted(expected - seen)}"
    return found


def trees(*folders: str) -> dict[str, ast.Module]:
    """What ``sources`` finds, parsed, by path within the repository."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sources(*folders)}


def imported(tree: ast.AST) -> set[str]:
    """Modules that a tree imports."""
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
