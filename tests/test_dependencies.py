"""What the wheel imports is what it declares; the accountant runs with NumPy, SciPy and cryptography alone."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

from tests.sources import ROOT, imported, trees

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES = {"scikit-learn": "sklearn", "dp-accounting": "dp_accounting", "mlflow-skinny": "mlflow", "dask": "distributed"}
PARTS = {"pydantic_core": "pydantic", "markupsafe": "jinja2"}  # come with the distribution and belong to its interface
OWN = {"accountant", "privbo", "_typeshed"}  # the last is there for type checkers alone
# Packages of the extras, each with the modules that load it as they are loaded; all others load it on first use.
EXTRAS = {
    "IPython": "", "dp_accounting": "", "distributed": "", "mlflow": "", "opendp": "", "pandas": "", "wandb": "",
    "psycopg": "accountant/ledger/postgres.py", "optuna": "privbo/bridges/optuna.py",
    "sklearn": "privbo/quickstart/tumours.py", "flwr": "privbo/flower/",
}  # fmt: skip
ACCOUNTANT = {"numpy", "scipy", "cryptography"}
NATIVE = {"cffi", "_cffi_backend", "pycparser"}  # of cryptography


def tops(tree: ast.AST) -> set[str]:
    """Foreign packages that a tree imports."""
    found = {name.partition(".")[0] for name in imported(tree)} - OWN - {"__future__"} - set(sys.stdlib_module_names)
    return {PARTS.get(name, name) for name in found}


def required(lines: list[str]) -> set[str]:
    names = [re.split(r"[^\w-]", line)[0] for line in lines]
    return {NAMES.get(name, name) for name in names}


def loaded_at_once(tree: ast.Module) -> set[str]:
    """Packages that importing the module imports: those outside its functions and its imports for type checkers."""
    found: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) and "TYPE_CHECKING" not in ast.dump(node):
            found |= tops(node)
    return found


def undeclared(found: dict[str, ast.Module], declared: set[str]) -> set[str]:
    """What is imported and not declared, or declared and not imported."""
    return (set().union(*map(tops, found.values())) - EXTRAS.keys()) ^ declared


def test_the_wheel_imports_what_it_declares_and_nothing_else() -> None:
    found, declared = trees("accountant", "privbo"), required(PROJECT["dependencies"])
    assert undeclared(found, declared) == set()
    assert undeclared(found | {"planted.py": ast.parse("def f():\n    import plotly.io")}, declared) == {"plotly"}
    assert undeclared(found, declared | {"plotly"}) == {"plotly"}


def test_every_extra_is_declared_and_loaded_on_first_use() -> None:
    extras = set().union(*map(required, PROJECT["optional-dependencies"].values()))
    found = trees("accountant", "privbo")
    assert EXTRAS.keys() - extras == {"IPython"}  # a notebook has it
    assert EXTRAS.keys() - set().union(*map(tops, found.values())) == set()
    at_once = {(name, path) for path, tree in found.items() for name in loaded_at_once(tree) & EXTRAS.keys()}
    assert {(name, path) for name, path in at_once if not EXTRAS[name] or not path.startswith(EXTRAS[name])} == set()
    assert {name for name, _ in at_once} == {name for name, place in EXTRAS.items() if place}


def test_the_accountant_imports_three_packages() -> None:
    drawing = {"matplotlib"}  # loaded where a trade-off is drawn
    assert set().union(*map(tops, trees("accountant").values())) - EXTRAS.keys() - drawing == ACCOUNTANT


ALONE = """
import sys
foreign = {foreign!r}

class Alone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Alone)

import doctest, importlib, pkgutil
import accountant
for module in pkgutil.walk_packages(accountant.__path__, "accountant."):
    if module.name != "accountant.ledger.postgres":  # which needs an extra, and says so
        importlib.import_module(module.name)
for name in accountant.__all__:
    getattr(accountant, name)
event = accountant.PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
print(round(accountant.epsilon_table(accountant.repeat(event, 40), 1e-5, adjacency="zero-out")["tight"], 2))
print(round(accountant.noise_multiplier(epsilon=3.96, sample_rate=0.25, rounds=40, delta=1e-5), 1))
print(doctest.testmod(sys.modules["accountant.ledger.ledger"]).failed)
{planted}
"""


def alone(planted: str = "") -> subprocess.CompletedProcess[str]:
    foreign = packages_distributions().keys() - ACCOUNTANT - NATIVE - {"accountant"} | {"privbo"}
    script = ALONE.format(foreign=foreign, planted=planted)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_accountant_runs_with_three_packages() -> None:
    done = alone()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3.96", "2.0", "0"]
    assert "No module named 'pydantic'" in alone("import pydantic").stderr
