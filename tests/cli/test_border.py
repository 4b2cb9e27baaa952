"""What a newcomer writes wrongly first: one line that names the value and what to write instead."""

from pathlib import Path

import pytest

import privbo as pb
from accountant.verify.auditor import BundleError, verify_bundle
from privbo.protocol.problem import ProblemSource


def score(client: int, params: dict[str, float]) -> float:
    return client * params["x"]


def test_a_space_without_names_is_refused_with_the_form_it_needs() -> None:
    with pytest.raises(pb.ConfigurationError, match=r"space=\[Real.* has no names; give a dict"):
        pb.Problem(space=[pb.Real(0, 1)], objective=score, n_clients=3)  # type: ignore[arg-type]  # the mistake


def test_a_name_of_configuration_files_is_refused_with_the_class_it_stands_for() -> None:
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=3)
    for name, wanted in (("shared-prior", "SharedPrior"), ("f-lcb", "FederatedFLCB")):
        with pytest.raises(pb.ConfigurationError, match=rf"give pb\.{wanted}\(\)"):
            pb.plan(problem, name, privacy=pb.NoPrivacy(), rounds=2)  # type: ignore[arg-type]  # the mistake
        assert hasattr(pb, wanted)


@pytest.mark.parametrize(
    ("field", "given", "wanted"), [("objective", "hosp.score", "'hosp:score'"), ("factory", "make", "module:function")]
)
def test_a_reference_without_a_colon_is_refused_before_anything_is_planned(field: str, given: str, wanted: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=rf"problem\.{field}='{given}'.*{wanted}"):
        ProblemSource(**{field: given})
    assert ProblemSource(objective="ask").objective == "ask"


@pytest.mark.parametrize("content", [b"<html>", b"", b"\xff\xfe\x00"])
def test_a_statement_or_a_picture_is_no_bundle(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "statement.html"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="is no bundle: it holds no JSON; give the file"):
        verify_bundle(path)
