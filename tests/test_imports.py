"""The import rules of the house, read from the source: an arrow only ever goes down.

Floors from the top; a module may import from its own room, and from any floor below
unless its room is restricted further.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"experiments", "benchmarks"},
    {"privbo.cli"},
    {"privbo.jobs", "privbo.page_jobs", "privbo.calibration", "privbo.bridges", "privbo.federation"},
    {"privbo.side_by_side"},
    {"privbo.sweep"},
    {"privbo.cell_runs", "privbo.selection"},
    {"privbo.cells"},
    {"privbo.api"},
    {"privbo.terminal", "privbo.cell_table", "privbo.pages"},
    {"privbo.loop", "privbo.config", "privbo.training"},
    {"privbo.opening"},
    {"privbo.manifest", "privbo.notes"},
    {"privbo.terms"},
    {
        "privbo.quickstart",
        "privbo.privacy",
        "privbo.thompson",
        "privbo.elimination",
        "privbo.functional",
        "privbo.transports",
    },
    {"privbo.problem", "privbo.release"},
    {"privbo.protocol", "privbo.record"},
    {"privbo.space", "privbo.threads"},
    {"privbo.errors"},
    {"accountant"},
]
FAMILIES = {"privbo.thompson", "privbo.elimination", "privbo.functional"}
FAMILIES_MAY = {"privbo.protocol", "privbo.space", "privbo.errors"}
ROOMS = set().union(*FLOORS)


def modules(folder: str) -> list[tuple[str, Path]]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
    return names


def room(module: str) -> str | None:
    matches = [r for r in ROOMS if module == r or module.startswith(r + ".")]
    return max(matches, key=len) if matches else None


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def violations(module: str, names: set[str]) -> list[str]:
    here = room(module)
    if here is None:
        return [f"{module} stands in no known room"]
    found = []
    for name in sorted(names):
        there = room(name)
        if there is None or there == here:
            continue
        if here in FAMILIES:
            if there not in FAMILIES_MAY:
                found.append(f"{module} (a family) imports {name}")
        elif floor(there) <= floor(here):
            found.append(f"{module} imports {name}, which is not below it")
        elif here == "accountant":
            found.append(f"{module} imports {name}")
    if here == "accountant":
        found += [f"{module} imports {n}" for n in names if n.split(".")[0] in {"privbo", "gpytorch"}]
        if module != "accountant.opacus_bridge":
            found += [f"{module} imports {n}" for n in names if n.split(".")[0] in {"torch", "opacus"}]
    return found


@pytest.mark.parametrize("folder", ["accountant", "privbo", "experiments"])
def test_arrows_only_go_down(folder: str) -> None:
    packages = {"privbo", "accountant", "experiments"}  # their __init__ name what they export lazily
    found = [
        line
        for module, path in modules(folder)
        if module not in packages
        for line in violations(module, imported(ast.parse(path.read_text())))
    ]
    assert not found, "\n".join(found)


def test_planted_violations_are_caught() -> None:
    assert violations("privbo.thompson.posterior", {"privbo.release.door"})
    assert violations("privbo.thompson.posterior", {"accountant.ledger"})
    assert violations("privbo.elimination.fed_pne", {"privbo.thompson.features"})
    assert violations("accountant.renyi", {"privbo.space"})
    assert violations("accountant.renyi", {"torch"})
    assert violations("privbo.release.door", {"privbo.loop"})
    assert violations("privbo.loop", {"privbo.pages.report"})


HEAVY = ("torch", "gpytorch", "scipy", "matplotlib", "plotly", "sklearn")


def heavy_after(code: str) -> str:
    """What a fresh interpreter has loaded once ``code`` has run, whether or not it exits."""
    tell = f"atexit.register(lambda: print('loaded', [m for m in {HEAVY} if m in sys.modules]))"
    script = f"import atexit, sys\n{tell}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.rpartition("loaded ")[2].strip()


@pytest.mark.parametrize(
    "code",
    [
        "import accountant; accountant.PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0)",
        "import privbo",
        "sys.argv = ['privbo', '--help']; from privbo.cli import main; main()",
        "sys.argv = ['privbo', 'run', '--help']; from privbo.cli import main; main()",
    ],
)
def test_light_imports(code: str) -> None:
    assert heavy_after(code) == "[]"


def test_a_heavy_import_is_noticed() -> None:
    assert "scipy" in heavy_after("import accountant; accountant.numerical.epsilon_interval")


def test_only_the_release_room_charges() -> None:
    """Nothing outside the door calls ``charge`` or ``store_release`` on a ledger."""
    callers = []
    for folder in ("privbo", "experiments"):
        for module, path in modules(folder):
            if room(module) == "privbo.release":
                continue
            callers += [
                f"{module}:{node.lineno}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute) and node.attr in {"charge", "store_release"}
            ]
    assert not callers, callers


def imports_of_flower(module: str, names: set[str]) -> list[str]:
    """Flower by its public modules, in the two rooms that speak it, and nowhere else."""
    allowed = module.startswith(("privbo.transports.flower", "privbo.federation."))
    flower = {name for name in names if name.split(".")[0] == "flwr"}
    public = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}
    return [f"{module} imports {name}" for name in sorted(flower) if not allowed or name not in public]


def test_only_the_federation_knows_flower() -> None:
    found = [
        line
        for folder in ("accountant", "privbo", "experiments")
        for module, path in modules(folder)
        for line in imports_of_flower(module, imported(ast.parse(path.read_text())))
    ]
    assert not found, "\n".join(found)
    assert imports_of_flower("privbo.loop", {"flwr.app"})
    assert imports_of_flower("privbo.federation.apps", {"flwr.common"})


@pytest.mark.parametrize("module", ["privbo.api", "privbo.jobs", "privbo.cli", "privbo.federation.launch"])
def test_nothing_of_the_core_loads_flower(module: str) -> None:
    code = f"import {module}, sys; print([m for m in sys.modules if m.split('.')[0] in ('flwr', 'grpc', 'ray')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
