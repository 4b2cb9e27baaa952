import pytest

from privbo.protocol.errors import RunError
from privbo.protocol.files import read_json
from privbo.runs.record import RunDirectory


def test_a_run_directory_is_made_once_and_its_private_side_is_marked(tmp_path) -> None:
    home = RunDirectory(tmp_path / "run")
    home.create({"format": 1}, seed=7)
    assert read_json(home.seed_path) == {"seed": 7}
    assert "PRIVATE" in (home.private / "README.txt").read_text()
    assert home.private.stat().st_mode & 0o077 == 0
    with pytest.raises(RunError, match="already holds"):
        home.create({"format": 1}, seed=7)


def test_what_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        RunDirectory(tmp_path / "nowhere").config()
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(RunError, match="JSON object"):
        RunDirectory(tmp_path).config()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="not a JSON"):
        RunDirectory(tmp_path).config()
