"""Another distribution named ``accountant`` is noticed by whoever imports privbo, and by the auditor's command."""

import os
import shutil
import subprocess
import sys

import pytest

import accountant
import privbo
from tests.sources import ROOT

FOREIGN = '__version__ = "0.3.0"\n\n\ndef book(amount):\n    return amount\n'
PRIVBO = ["-c", "import privbo; print(privbo.__version__)"]
AUDITOR = ["-m", "accountant.verify.auditor", "--help"]


@pytest.fixture
def installed(tmp_path):
    """A folder of packages, as an installer makes one; of the accountant a copy, whose files are to be replaced."""
    packages = tmp_path / "packages"
    shutil.copytree(ROOT / "accountant", packages / "accountant", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "privbo").symlink_to(ROOT / "privbo")
    return packages


def python(arguments: list[str], *path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=path[0], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", [PRIVBO, AUDITOR], ids=["privbo", "auditor"])
@pytest.mark.parametrize("init", [FOREIGN, None, 'DISTRIBUTION = "accountant 2.0"\n'], ids=["over", "gone", "other"])
def test_an_accountant_that_was_written_over_or_taken_away_is_refused(init, command, installed) -> None:
    sound = python(command, installed)
    assert sound.returncode == 0, sound.stderr
    file = installed / "accountant" / "__init__.py"
    file.unlink()
    if init is not None:
        file.write_text(init)
    done = python(command, installed)
    assert done.returncode != 0
    assert "ImportError: " in done.stderr.splitlines()[-1]
    for remedy in ("pip uninstall accountant", "pip install --force-reinstall --no-deps privbo"):
        assert remedy in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["accountant.py", "accountant/__init__.py"])
def test_an_accountant_that_stands_before_ours_is_refused(name: str, installed, tmp_path) -> None:
    """Even one that says that it is ours."""
    file = tmp_path / "first" / name
    file.parent.mkdir(parents=True)
    file.write_text(f'DISTRIBUTION = "{accountant.DISTRIBUTION}"\n')
    done = python(PRIVBO, tmp_path / "first", installed)
    assert done.returncode != 0
    assert str(file) in done.stderr.splitlines()[-1]


def test_a_privbo_of_another_version_than_its_accountant_is_refused(installed) -> None:
    assert accountant.DISTRIBUTION.removeprefix("privbo ") == privbo.__version__
    ours = installed / "accountant" / "ours.py"
    ours.write_text(ours.read_text().replace(privbo.__version__, "0.2.0"))
    assert "is not the one of privbo" in python(PRIVBO, installed).stderr
