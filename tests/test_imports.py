"""Modules that a light import loads, callers of the ledger, Flower's public names; the rest is import-linter's."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT, sources


def modules(folder: str) -> list[tuple[str, Path]]:
    found = []
    for path in sources(folder):
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


HEAVY = ("torch", "gpytorch", "numba", "scipy", "matplotlib", "sklearn", "rich")


def heavy_after(code: str) -> str:
    """Names of the heavy modules that a fresh interpreter has loaded once ``code`` has run, or has exited."""
    tell = f"atexit.register(lambda: print('loaded', [m for m in {HEAVY} if m in sys.modules]))"
    script = f"import atexit, sys\n{tell}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.rpartition("loaded ")[2].strip()


@pytest.mark.parametrize(
    "code",
    [
        "import accountant; accountant.PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0)",
        "import privbo",
        "sys.argv = ['privbo', '--help']; from privbo.cli.main import main; main()",
        "sys.argv = ['privbo', 'run', '--help']; from privbo.cli.main import main; main()",
    ],
)
def test_light_imports(code: str) -> None:
    assert heavy_after(code) == "[]"


def test_a_run_without_a_bar_loads_what_it_needs() -> None:
    assert heavy_after("import privbo.runs.loop") == "['scipy']"


def test_a_heavy_import_is_noticed() -> None:
    assert "scipy" in heavy_after("import accountant; accountant.numerical.epsilon_interval")


def test_only_the_door_charges() -> None:
    """Nothing outside the door calls ``charge`` or ``store_release`` on a ledger."""
    callers = []
    for folder in ("privbo", "experiments"):
        for module, path in modules(folder):
            if module.startswith("privbo.door."):
                continue
            callers += [
                f"{module}:{node.lineno}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute) and node.attr in {"charge", "store_release"}
            ]
    assert not callers, callers


def test_flower_is_used_by_its_public_modules() -> None:
    found = {name for _, path in modules("privbo") for name in imported(ast.parse(path.read_text()))}
    flower = {name for name in found if name.split(".")[0] == "flwr"}
    assert flower == {"flwr.app", "flwr.serverapp", "flwr.clientapp"}


@pytest.mark.parametrize("module", ["privbo.runs.record", "privbo.cli.run", "privbo.cli.main", "privbo.flower.launch"])
def test_nothing_of_the_core_loads_flower(module: str) -> None:
    code = f"import {module}, sys; print([m for m in sys.modules if m.split('.')[0] in ('flwr', 'grpc', 'ray')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
