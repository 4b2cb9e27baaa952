"""What `make release` refuses, and what its files say; that it builds and tries is its own work, and takes minutes."""

import importlib.machinery
import importlib.util
import re
import sys
import zipfile

import jinja2
import pytest
import yaml

import privbo
from tests.sources import ROOT


@pytest.fixture
def release(tmp_path, monkeypatch):
    """The script as a module, over an empty dist/."""
    loader = importlib.machinery.SourceFileLoader("privbo_release", str(ROOT / ".ci/release"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("privbo_release", loader))
    monkeypatch.setitem(sys.modules, "privbo_release", module)
    loader.exec_module(module)
    for name, folder in (("DIST", tmp_path), ("PACKAGES", tmp_path / "packages")):
        monkeypatch.setattr(module, name, folder)
    module.PACKAGES.mkdir()
    return module


def test_notes_are_the_section_of_this_version(release) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    notes = release.notes(changes, privbo.__version__)
    assert notes.startswith(f"# privbo {privbo.__version__} (")
    assert "\n## " not in notes
    assert notes.count("\n- ") > 20
    for other in (changes, changes.replace("\n## ", "\n## 9.9.9 (2030-01-01)\n\n## ", 1)):
        with pytest.raises(release.ReleaseError, match="write its section first"):
            release.notes(other, "9.9.9")
    with pytest.raises(release.ReleaseError, match=r"the tag is v9\.9\.9"):
        release.main(["build", "--tag", "v9.9.9"])


def test_only_what_was_built_is_tried(release) -> None:
    wheel, sdist = (release.PACKAGES / name for name in ("privbo-1-py3-none-any.whl", "privbo-1.tar.gz"))
    with pytest.raises(release.ReleaseError, match="build them"):
        release.packages()
    wheel.write_bytes(b"built"), sdist.write_bytes(b"too")
    (release.DIST / "SHA256SUMS").write_text(release.checksums([wheel, sdist]))
    assert release.packages() == (wheel, sdist)
    wheel.write_bytes(b"built again")
    with pytest.raises(release.ReleaseError, match="build again"):
        release.packages()


def test_a_wheel_with_a_strange_top_or_without_a_file_is_refused(release) -> None:
    wheel = release.PACKAGES / "privbo-1-py3-none-any.whl"
    for names, wrong in (
        (release.NEEDED, None),
        (release.NEEDED | {"tests/test_it.py"}, r"holds \['tests'\]"),
        (release.NEEDED - {"privbo/py.typed"}, r"lacks \['privbo/py.typed'\]"),
    ):
        with zipfile.ZipFile(wheel, "w") as made:
            for name in names | {"privbo-1.dist-info/METADATA"}:
                made.writestr(name, "x")
        if wrong is None:
            release.require_contents(wheel)
        else:
            with pytest.raises(release.ReleaseError, match=wrong):
                release.require_contents(wheel)


def test_pythons_are_those_that_the_package_allows(release) -> None:
    asked = "import sys; print(*sys.version_info[:2], sys.prefix == sys.base_prefix)"
    said = [release.run(python, "-c", asked).split() for python in release.pythons()]
    assert [str(sys.version_info[0]), str(sys.version_info[1]), "True"] in said
    versions = [(int(major), int(minor)) for major, minor, _ in said]
    assert versions == sorted(set(versions))
    assert versions[0] >= (3, 11)


def test_the_recipe_is_filled_in(release) -> None:
    recipe = (ROOT / ".github/conda/meta.yaml").read_text()
    filled = recipe.replace("@VERSION@", "1.2.3").replace("@SHA256@", "ab" * 32)
    read = yaml.safe_load(jinja2.Template(filled).render(PYTHON="python"))
    assert read["source"] == {
        "url": "https://pypi.org/packages/source/p/privbo/privbo-1.2.3.tar.gz", "sha256": "ab" * 32
    }  # fmt: skip
    assert read["package"] == {"name": "privbo", "version": "1.2.3"}


def test_what_is_uploaded_was_tried_and_actions_are_named_by_commit() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    assert set(jobs["upload"]["needs"]) == {"check", "build", "try"}
    builds = [name for name, job in jobs.items() for step in job.get("steps", ()) if "build" in step.get("run", "")]
    assert builds == ["build"]
    assert any("--suite" in step.get("run", "") for step in jobs["try"]["steps"])
    text = "\n".join(form.read_text() for form in (ROOT / ".github/workflows").glob("*.yml"))
    used = re.findall(r"uses: ([^.\s]\S+)", text)
    assert len(used) > 20
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []
