"""Modules that a light import loads, callers of the ledger, Flower's public names; the rest is import-linter's."""

import ast
import subprocess
import sys

import pytest

from tests.sources import ROOT, imported, trees

HEAVY = ("torch", "gpytorch", "numba", "scipy", "matplotlib", "sklearn", "rich")
FLOWER = ("flwr", "grpc", "ray")


def loaded_after(code: str, names: tuple[str, ...] = HEAVY) -> str:
    """Those of the modules that a fresh interpreter has loaded once ``code`` has run, or has exited."""
    tell = f"atexit.register(lambda: print('loaded', [m for m in {names} if m in sys.modules]))"
    script = f"import atexit, sys\n{tell}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.rpartition("loaded ")[2].strip()


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import accountant; accountant.PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0)", "[]"),
        ("import privbo", "[]"),
        ("sys.argv = ['privbo', '--help']; from privbo.cli.main import main; main()", "[]"),
        ("sys.argv = ['privbo', 'run', '--help']; from privbo.cli.main import main; main()", "[]"),
        ("import privbo.runs.loop", "['scipy']"),  # a run without a bar loads what it needs
        ("import accountant; accountant.numerical.epsilon_interval", "['scipy']"),  # a heavy import is noticed
    ],
)
def test_light_imports(code: str, loaded: str) -> None:
    assert loaded_after(code) == loaded


@pytest.mark.parametrize("module", ["privbo.runs.record", "privbo.cli.run", "privbo.cli.main", "privbo.flower.launch"])
def test_nothing_of_the_core_loads_flower(module: str) -> None:
    assert loaded_after(f"import {module}", FLOWER) == "[]"


def test_only_the_door_charges() -> None:
    """Nothing outside the door calls ``charge`` or ``store_release`` on a ledger."""
    callers = [
        f"{path}:{node.lineno}"
        for path, tree in trees("privbo", "experiments").items()
        if not path.startswith("privbo/door/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"charge", "store_release"}
    ]
    assert not callers


def test_flower_is_used_by_its_public_modules() -> None:
    found = set().union(*map(imported, trees("privbo").values()))
    flower = {name for name in found if name.split(".")[0] == "flwr"}
    assert flower == {"flwr.app", "flwr.serverapp", "flwr.clientapp"}
