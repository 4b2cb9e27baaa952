"""A run as asked for: one table, two hashes."""

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import privbo as pb
from privbo.runs.spec import RunSettings, Spec, Times, read_spec
from tests.conformance.cases import ALIKE, CASES, Case, problem
from tests.sources import ROOT


def score(client: int, params) -> float:
    return -float(params["x"])


def spec(**changes) -> Spec:
    mine = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=3)
    plain = {"name": "toy", "problem": mine, "algorithm": pb.DPFTSDE(), "privacy": pb.Privacy(epsilon=2), "rounds": 5}
    return Spec(**plain | changes)


WRITTEN = [
    pb.DPFTSDE.paper(),
    pb.DPFTSDE(noise="theory", own=pb.OwnModel(regularisation="theory", inflation=pb.Theorem1(failure=0.05))),
    pb.DPFTSDE(n_regions=2, cuts=[pb.Cut(parameter="kind", at=["b"])], own=pb.OwnModel(noise_variance=0.1)),
    pb.DPFTSDE(n_regions=2, cuts=[pb.Cut(parameter="flag", at=[True])], weighting=pb.Weighting(hold=3, decay=0)),
    pb.FederatedFLCB(arm="model", delta_b=0.1, tolerance=0.2, reward_range=(-1, 1)),
    pb.ParallelXArmed(delta_b=0.01, reward_range=[0, 2]),
    pb.PFPNE(horizon=10**6, nu1=1 / 3, rho=0.1 + 0.2, cap=100, clip=1e-6, centre="client", reward_range=(-0.1, 1 / 7)),
]


@pytest.mark.parametrize("case", [*CASES, *ALIKE, *(Case(type(each).__name__, each) for each in WRITTEN)], ids=str)
def test_a_spec_is_its_table(case: Case) -> None:
    asked = spec(problem=problem(), algorithm=case.algorithm, privacy=case.privacy(), seed=3)
    back = Spec.from_dict(asked.to_dict())
    assert back == asked
    assert hash(back) == hash(asked)
    assert back.digest() == asked.digest()
    local = spec(algorithm=asked.algorithm.local())
    assert Spec.from_dict(local.to_dict()) == local


def test_a_table_that_names_its_code_is_the_run() -> None:
    table = spec().to_dict() | {"problem": {"factory": "privbo.quickstart.tumours:problem"}}
    loaded = Spec.from_dict(table, trusted=True).loaded()
    again = Spec.from_dict(loaded.to_dict())  # with the facts stated nothing is imported
    assert again == loaded
    assert again.loaded().problem.n_clients == 40


@pytest.mark.parametrize(
    "change",
    [{"rounds": 6}, {"seed": 1}, {"privacy": pb.Privacy(epsilon=3)}, {"algorithm": pb.DPFTSDE(n_features=8)},
     {"control": "zeroed"}, {"attendance": pb.Attendance(dropout=0.5)}],
    ids=str,
)  # fmt: skip
def test_every_setting_changes_the_digest(change) -> None:
    assert spec(**change).digest() != spec().digest()
    assert spec(**change) != spec()


def test_code_enters_the_key_for_reuse_and_no_other() -> None:
    table = spec().to_dict()
    public = {name: table["problem"][name] for name in ("n_clients", "space")}
    asked = [{"objective": "tests.runs.test_spec:score"}, {"objective": "tests.crash_problem:problem"}]
    asked.append(asked[0] | {"earlier": "tests.crash_problem:problem"})
    asked.append(asked[0] | {"fingerprint": "data of 2007"})
    made = [Spec.from_dict(table | {"problem": public | one}) for one in asked]
    assert len({one.digest() for one in made[:3]}) == 1
    assert len({one.code().digest for one in made} - {None}) == len(asked)
    assert spec().code().digest is None


def test_how_a_run_is_carried_out_is_no_setting_of_it() -> None:
    assert spec(threads=4, controls=["local"]) == spec()


STORED = json.loads((Path(__file__).parent / "stored_specs.json").read_text())


def test_tables_and_digests_are_those_stored() -> None:
    """A digest names what was paid for, so a stored one never changes; the order of a table's keys counts, too."""
    read = {name: Spec.from_dict(one["asked"]) for name, one in STORED["runs"].items()}
    read |= {name: read_spec(ROOT / name, load=False) for name in STORED["files"]}
    for name, one in (STORED["runs"] | STORED["files"]).items():
        assert read[name].digest() == one["digest"], name
        for said, table in (("table", read[name].to_dict()), ("departures", read[name].departures())):
            assert hashlib.sha256(json.dumps(table).encode()).hexdigest() == one[said], (name, said)


def test_a_later_default_names_another_charge_and_the_first_one_the_same() -> None:
    def named(algorithm: pb.SharedPrior) -> object:
        return spec(algorithm=algorithm).departures()["algorithm"]

    assert named(pb.SharedPrior(schedule=(0, 2, 5), shares=(5.0, 2.0, 1.0))) == {"type": "shared-prior"}
    assert named(pb.SharedPrior()) == {"type": "shared-prior", "schedule": [1, 5], "shares": [1.0, 1.0]}


@pytest.mark.parametrize("fault", STORED["faults"], ids=lambda fault: str(fault["changes"]))
def test_faults_are_told_in_the_words_stored(fault) -> None:
    table = {key: value for key, value in (STORED["table"] | fault["changes"]).items() if value is not None}
    with pytest.raises(pb.ConfigurationError) as refused:
        Spec.from_dict(table)
    assert str(refused.value) == fault["words"]


def test_every_setting_of_a_spec_is_one_of_run_or_of_a_file_alone() -> None:
    own = {"name", "problem", "algorithm", "executor", "directory"}  # arguments of ``run`` that stand in its signature
    assert {f.name for f in dataclasses.fields(Spec)} == RunSettings.__annotations__.keys() | own | {
        "controls",
        "threads",
    }


@pytest.mark.parametrize("start", [pb.run, pb.plan])
def test_an_unknown_setting_is_refused_with_those_there_are(start) -> None:
    with pytest.raises(
        pb.ConfigurationError, match=r"threads: no argument, .* setting of a run: attendance, .*, times$"
    ):
        start(spec().problem, pb.DPFTSDE(), privacy=pb.NoPrivacy(), rounds=1, threads=2)


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"name": "my study"}, "no spaces"), ({"name": "a/b"}, "no spaces"),
     ({"jobs": 4}, "name another executor"), ({"final_share": 0.5}, "leave final_share out"),
     ({"resume": True, "directory": None, "privacy": pb.NoPrivacy()}, "only a run with a directory can be resumed"),
     ({"times": Times(round_seconds=7.0, client_seconds=3.0)}, "declare longer rounds"),
     ({"device": "gpu"}, "write device = 'cpu'"), ({"device": "cuda:99"}, "write device = 'cpu'"),
     ({"on_round": lambda: None}, r"on_round can't be called as on_round\(round\)"),
     ({"on_private_round": lambda: None}, r"on_private_round can't be called as on_private_round\(round\)")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_a_run_could_not_go_on_with_is_refused_before_it_is_made(setting, words: str, tmp_path: Path) -> None:
    asked = {"privacy": pb.Privacy(epsilon=2), "rounds": 2, "directory": tmp_path / "run"}
    with pytest.raises((pb.ConfigurationError, pb.RunError), match=words):
        pb.run(spec().problem, pb.FedPNE(), **asked | setting)
    assert not (tmp_path / "run").exists()


def ranged() -> pb.Problem:
    space = {"x": pb.Real(0, 1)}
    counts = {"n_records": [3, 3], "score_range": (0, 5)}
    return pb.Problem(space=space, objective=score, n_clients=2, name="made", provenance="drawn", **counts)


def test_what_a_table_states_of_a_problem_is_not_passed_over() -> None:
    def loaded(**problem) -> pb.Problem:
        stated = {"factory": "tests.runs.test_spec:ranged"} | problem
        return Spec.from_dict(spec().to_dict() | {"problem": stated}, trusted=True).loaded().problem

    made, named = loaded(), loaded(name="stated", provenance="wards", score_range=[0.0, 5.0])
    assert (made.name, made.provenance, named.name, named.provenance) == ("made", "drawn", "stated", "wards")
    assert loaded(**spec(problem=made).to_dict()["problem"]).table() == made.table()
    for differing in ([0.0, 1.0], [0.0, 2.0]):
        with pytest.raises(pb.ConfigurationError, match=r"has score_range=\(0.0, 5.0\), .* state the same score_range"):
            loaded(score_range=differing)
    space = {"x": {"type": "real", "low": 0, "high": 1}}
    table = {"objective": "tests.runs.test_spec:score", "n_clients": 2, "space": space}
    assert loaded(factory=None, **table).n_clients == 2
    with pytest.raises(pb.ConfigurationError, match=r"arguments=\{'seed': 1\} go to a factory; name one, or drop them"):
        loaded(factory=None, **table, arguments={"seed": 1})


def test_an_algorithm_that_cannot_be_recorded_is_refused_in_our_words() -> None:
    bare = SimpleNamespace(server=None, cohort=None, local=None, caveat=None, is_certified=True)
    with pytest.raises(pb.ConfigurationError, match="is no dataclass, so its settings can't be recorded"):
        spec(algorithm=bare).to_dict()
