"""What stands beside the packages says the same as they do: versions, workflows, hooks, templates."""

import re
import tomllib

import pytest
import yaml

import privbo
from tests.docs.test_blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"])


def test_one_version_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    recipe = re.search(r'set version = "([^"]+)"', (ROOT / ".github/conda/meta.yaml").read_text())
    assert recipe is not None
    assert cited == recipe[1] == privbo.__version__


def test_the_recipe_and_the_container_install_what_the_package_needs() -> None:
    recipe = (ROOT / ".github/conda/meta.yaml").read_text()
    conda = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    for needed in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", needed).groups()
        assert f"- {conda.get(name, name)} {bounds}\n" in recipe
    copied = re.findall(r"^COPY (\w+) ", (ROOT / ".github/Containerfile").read_text(), re.MULTILINE)
    assert set(copied) == {"privbo", "accountant"}


def test_every_python_that_is_promised_is_tried() -> None:
    tried = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]["tests"]["strategy"]["matrix"]
    promised = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert tried["python"] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_are_read_and_what_they_run_is_there(form) -> None:
    text = form.read_text()
    assert yaml.safe_load(text)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets
    assert [path for path in re.findall(r"\b(?:tests|docs)/[\w/.-]+", text) if not (ROOT / path).exists()] == []


def test_workflows_ask_for_no_more_than_they_need() -> None:
    for form in (ROOT / ".github/workflows").glob("*.yml"):
        assert yaml.safe_load(form.read_text())["permissions"] == {"contents": "read"}
