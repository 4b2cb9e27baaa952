"""What stands beside the packages says the same as they do: versions, workflows, hooks, templates."""

import inspect
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

import accountant
import privbo
from accountant.ours import DISTRIBUTION
from tests.docs.test_blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KINDS = {"Changed", "Added", "Deprecated", "Removed", "Fixed", "Security"}
CHANGES = (ROOT / "CHANGELOG.md").read_text()
CONTAINER = ROOT / ".github/Containerfile"
FORMS = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"])


def test_one_version_everywhere() -> None:
    """It stands at the package; the accountant's copy tells a mixture of two installations, the changelog its day."""
    released = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d{2}-\d{2}\)$", CHANGES, re.MULTILINE)
    assert DISTRIBUTION == f"privbo {released[0]}" == f"privbo {privbo.__version__}"


def test_the_changelog_is_made_of_versions_and_kinds() -> None:
    assert set(re.findall(r"^### (.*)$", CHANGES, re.MULTILINE)) <= KINDS
    for section in CHANGES.split("\n## ")[1:]:
        named = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert len(set(named)) == len(named)


def test_the_recipe_and_the_container_install_what_the_package_needs() -> None:
    recipe = (ROOT / ".github/conda/meta.yaml").read_text()
    conda = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    needed = (re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in PROJECT["dependencies"])
    stated = recipe.partition("  run:\n")[2].partition("test:\n")[0].splitlines()
    assert stated == ["    - python >=3.11", *(f"    - {conda.get(name, name)} {bounds}" for name, bounds in needed)]
    assert set(re.findall(r"^COPY (\w+) ", CONTAINER.read_text(), re.MULTILINE)) == {"privbo", "accountant"}


def test_public_names_say_since_when_they_are_there_and_none_is_gone() -> None:
    released = set((ROOT / "tests/docs/names_of_0_2_0.txt").read_text().split())
    public = {f"{home.__name__}.{name}": getattr(home, name) for home in (privbo, accountant) for name in home.__all__}
    silent = [name for name, thing in public.items() if "\n.. versionadded:: " not in (inspect.getdoc(thing) or "")]
    assert set(silent) == released & public.keys()
    assert released - public.keys() == set()  # what goes is deprecated for a version first


def test_every_extra_that_users_install_leads_somewhere() -> None:
    rows = [row for row in (ROOT / "docs/install.md").read_text().splitlines() if row.startswith("| `") and "](" in row]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert PROJECT["optional-dependencies"].keys() - named == {"test", "docs", "bench"}


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


def test_the_project_has_one_address() -> None:
    home = PROJECT["urls"]["Source"]
    files = [*FORMS, ROOT / "CITATION.cff", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {found for file in files for found in re.findall(r"https://github\.com/privbo[\w/-]*", file.read_text())}
    assert home in {found[: len(home)] for found in named}
    assert [found for found in named if not found.startswith(home)] == []
    assert all(url.startswith(home) for name, url in PROJECT["urls"].items() if name != "Documentation")


def test_links_of_the_index_page_are_absolute_and_lead_to_files() -> None:
    """The README stands on the package index, where a relative link leads nowhere."""
    text = (ROOT / PROJECT["readme"]).read_text()
    inline, named = re.findall(r"\]\(([^)]*)\)", text), dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([\w-]*)\]", text)) == named.keys()
    assert [url for url in (*inline, *named.values()) if not url.startswith("https://")] == []
    ours = re.compile(rf"(?:{PROJECT['urls']['Source']}/blob|https://raw\.githubusercontent\.com/privbo/privbo)/main/")
    paths = [ours.sub("", url) for url in named.values() if ours.match(url)]
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_what_the_container_copies_makes_a_wheel(tmp_path) -> None:
    for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER.read_text(), re.MULTILINE):
        *names, target = line.split()
        for name in names:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tmp_path / (name if target == "./" else target))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", "."]
    subprocess.run(pip, cwd=tmp_path, check=True)
    assert [path.name.split("-")[:2] for path in (tmp_path / "dist").iterdir()] == [["privbo", privbo.__version__]]
