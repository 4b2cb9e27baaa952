import pytest

import privbo as pb
from privbo.protocol.errors import RunError
from privbo.runs.manifest import RunDirectory
from tests.conformance.cases import problem


def test_a_run_directory_is_made_once_and_its_private_side_is_marked(tmp_path) -> None:
    home = RunDirectory(tmp_path / "run")
    manifest = pb.run(problem(), pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=1).manifest
    home.create(manifest, seed=7)
    assert home.seed == 7
    assert home.manifest() == manifest
    assert "PRIVATE" in (home.private / "README.txt").read_text()
    assert home.private.stat().st_mode & 0o077 == 0
    with pytest.raises(RunError, match="already holds"):
        home.create(manifest, seed=7)


def test_what_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        RunDirectory(tmp_path / "nowhere").manifest()
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(RunError, match="JSON object"):
        RunDirectory(tmp_path).manifest()
    (tmp_path / "config.json").write_text('{"format": 1}')
    with pytest.raises(RunError, match="make the run anew from its configuration"):
        RunDirectory(tmp_path).manifest()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="not a JSON"):
        RunDirectory(tmp_path).manifest()
