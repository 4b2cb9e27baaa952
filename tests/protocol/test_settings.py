"""What a user may write wrong, from Python and from TOML: every refusal names key, value, bound and remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest

import privbo as pb
from privbo.cli.main import main
from privbo.protocol.settings import Count, Positive, Probability, Sequence, dump_settings, read_settings, settings
from privbo.runs.sources import read_algorithm
from privbo.runs.spec import Spec
from tests.builders import problem

RUN = """
name = "toy"
rounds = 2
{top}
[problem]
factory = "tests.crash_problem:problem"
[algorithm]
{algorithm}
[privacy]
{privacy}
"""
DPFTS, EPSILON = 'type = "dp-fts-de"', "epsilon = 2.0"
WITHOUT_TABLE = RUN.replace("[privacy]\n{privacy}\n", "").replace("{top}", "privacy = 2.0")


CLASSIC_IN_PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "text for a number": (
        lambda: pb.Privacy(epsilon="1"),
        "privacy.epsilon='1': input should be a valid number; correct it",
    ),
    "text for an integer": (
        lambda: pb.FedPNE(horizon="a"),
        "algorithm.horizon='a': input should be a valid integer; correct it",
    ),
    "no settings": (
        lambda: pb.run(problem(), pb.DPFTSDE, privacy=pb.Privacy(epsilon=1.0), rounds=1),
        "algorithm=DPFTSDE is a class; give its settings: DPFTSDE()",
    ),
    "a number for privacy": (
        lambda: pb.run(problem(), pb.DPFTSDE(), privacy=2.0, rounds=1),
        "privacy=2.0: input should be Privacy or NoPrivacy; write Privacy(epsilon=...)",
    ),
}
CLASSIC_IN_TOML = {
    "text for a number": (
        RUN.format(top="", algorithm=DPFTS, privacy='epsilon = "1"'),
        "privacy.epsilon='1': input should be a valid number; correct it",
    ),
    "text for an integer": (
        RUN.format(top="", algorithm='type = "fed-pne"\nhorizon = "a"', privacy=EPSILON),
        "algorithm.horizon='a': input should be a valid integer; correct it",
    ),
    "no settings": (
        RUN.format(top="", algorithm='type = "tests.crash_problem:problem"', privacy=EPSILON),
        "algorithm.type='tests.crash_problem:problem' is no dataclass; name one with settings",
    ),
    "a number for privacy": (
        WITHOUT_TABLE.format(algorithm=DPFTS),
        "privacy=2.0: input should be a table; write [privacy] and its keys",
    ),
}


@pytest.mark.parametrize(("make", "words"), CLASSIC_IN_PYTHON.values(), ids=CLASSIC_IN_PYTHON)
def test_classic_mistakes_in_python_name_value_bound_and_remedy(make: Callable[[], object], words: str) -> None:
    with pytest.raises(pb.ConfigurationError) as refused:
        make()
    assert str(refused.value) == words


@pytest.mark.parametrize(("text", "words"), CLASSIC_IN_TOML.values(), ids=CLASSIC_IN_TOML)
def test_classic_mistakes_in_toml_end_the_command_with_2_and_the_same_words(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(text)
    command = ["privbo", "run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    with mock.patch.object(sys, "argv", command), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == f"privbo: {words}"
    assert not (tmp_path / "run").exists()


THEORY = "algorithm.noise=-1.0: input should be a number > 0, or 'theory'; correct it"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pb.DPFTSDE(noise=-1.0), THEORY),
        (lambda: read_algorithm({"type": "dp-fts-de", "noise": -1.0}), THEORY),
        (
            lambda: pb.Privacy(epsilon=1.0, delta=2.0),
            "privacy.delta=2.0: input should be a number < 1, or 'paper'; correct it",
        ),
        (
            lambda: read_algorithm({"type": "dp-fts-de", "own": {"inflation": {"failure": 3}}}),
            "algorithm.own.inflation.failure=3: input should be a number < 1; correct it",
        ),
        (
            lambda: pb.OwnModel(inflation=-1.0),
            "algorithm.own.inflation=-1.0: input should be a number > 0, or an instance of Theorem1; correct it",
        ),
    ],
)
def test_a_fault_in_a_union_names_the_users_key_once_with_all_it_may_be(make: Callable[[], object], words: str) -> None:
    with pytest.raises(pb.ConfigurationError) as refused:
        make()
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("make", "maker"),
    [
        (lambda: pb.DPFTSDE(own={"restarts": 1}), "OwnModel(...)"),
        (lambda: pb.DPFTSDE(cuts=[{"parameter": "x", "at": [0.5]}]), "Cut(...)"),
        (lambda: pb.OwnModel(inflation={"failure": 0.1}), "Theorem1(...)"),
        (lambda: pb.Privacy(epsilon=1.0, adaptive_clipping={"count_stddev": 1.0}), "AdaptiveClipping(...)"),
    ],
)
def test_a_dict_for_nested_settings_names_the_class_to_make(make: Callable[[], object], maker: str) -> None:
    with pytest.raises(pb.ConfigurationError) as refused:
        make()
    assert str(refused.value).endswith(f"; make one: {maker}")


@settings(table="oven")
class Oven:
    """A table whose keys are words that pydantic uses, too."""

    watts: dict[str, Positive]


def test_the_users_own_keys_stay_in_the_message_whatever_they_are_called() -> None:
    words = r"^oven\.watts\.constrained-float=-1: input should be a number > 0; correct it$"
    with pytest.raises(pb.ConfigurationError, match=words):
        read_settings(Oven, {"watts": {"constrained-float": -1}}, "oven")


def test_a_parameter_without_its_type_is_told_that_the_type_is_missing() -> None:
    table = {"objective": "a:b", "n_clients": 3, "space": {"x": {"low": 0, "high": 1}}}
    whole = {"name": "toy", "rounds": 1, "problem": table, "algorithm": {}, "privacy": {}}
    with pytest.raises(pb.ConfigurationError, match=r"^problem\.space\.x\.type is missing; give it$"):
        Spec.from_dict(whole)


@settings()
class Inner:
    size: Count = 3
    type: Literal["inner"] = "inner"


@settings()
class Before:
    rate: Probability = 0.5
    inner: Inner = Inner()
    parts: Sequence[Inner] = ()


@settings()
class After:
    rate: Probability = 0.5
    inner: Inner = Inner()
    parts: Sequence[Inner] = ()
    added: bool = False


def test_departures_stay_the_same_table_when_a_setting_is_added() -> None:
    given = {"rate": 0.25, "parts": (Inner(size=4), Inner())}
    expected = {"rate": 0.25, "parts": [{"size": 4, "type": "inner"}, {"type": "inner"}]}
    assert dump_settings(Before(**given), defaults=False) == dump_settings(After(**given), defaults=False) == expected
    assert read_settings(After, expected, "") == After(**given)
    assert dump_settings(After(added=True), defaults=False) == {"added": True}
