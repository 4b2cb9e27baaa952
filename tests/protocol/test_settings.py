"""Settings: what may be written wrong, with key, value, bound and remedy; tables, files, scores of blocks."""

import os
import pickle
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any, Literal, cast
from unittest import mock

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.protocol import files
from privbo.protocol.errors import RunError
from privbo.protocol.settings import (
    Count,
    Positive,
    Probability,
    Sequence,
    dump_settings,
    read_settings,
    settings,
    settings_schema,
)
from privbo.runs.offer import always
from privbo.runs.sources import ForeignAlgorithm, algorithms, read_algorithm
from privbo.runs.spec import Spec, Times
from tests.builders import problem
from tests.cli.test_cli import privbo, toml


def test_a_classic_mistake_in_toml_ends_the_command_with_2_and_pythons_words(tmp_path) -> None:
    words = "privacy.epsilon='1': input should be a valid number; correct it"
    (tmp_path / "run.toml").write_text(toml(privacy={"epsilon": "1"}))
    ended = privbo("run", tmp_path / "run.toml", "--out", tmp_path / "run")
    assert (ended.returncode, ended.stderr) == (2, f"privbo: {words}\n")
    assert not (tmp_path / "run").exists()
    with pytest.raises(pb.ConfigurationError) as refused:
        pb.Privacy(epsilon="1")
    assert str(refused.value) == words


def read(**table: object):
    return read_algorithm({"type": "dp-fts-de"} | table)


def parameter(**given: object) -> Spec:
    table = {"objective": "a:b", "n_clients": 3, "space": {"x": {"low": 0, "high": 1} | given}}
    return Spec.from_dict({"name": "toy", "rounds": 1, "problem": table, "algorithm": {}, "privacy": {}})


shared_ledger = partial(pb.SharedLedger, path="p.sqlite", population="w")
releases = partial(pb.DeclaredReleases, noise_multiplier=1.0)
play = partial(pb.run, problem(), algorithm=pb.DPFTSDE(), privacy=pb.NoPrivacy(), rounds=1)
BOUND, ONE = {"epsilon": 4.0, "delta": 1e-5}, {"epsilon": 1.0}
REWARD = {"noise_multiplier": 3.0, "unit": "reward"}
NOT_HELD = "without a bound nothing is held to a rule"
THEORY = "algorithm.noise=-1.0: input should be a number > 0, or 'theory'; correct it"
IMPOSSIBLE = [
    (pb.FedPNE, {"horizon": 0}, "algorithm.horizon=0: input should be a number >= 1; correct it"),
    (pb.FedPNE, {"horizon": "a"}, "algorithm.horizon='a': input should be a valid integer; correct it"),
    (pb.Exploration, {"scale": 1.5}, "algorithm.exploration.scale=1.5: input should be a number <= 1; correct it"),
    (pb.DPFTSDE, {"noise": -1.0}, THEORY),
    (read, {"noise": -1.0}, THEORY),
    (read, {"own": {"inflation": {"failure": 3}}}, "algorithm.own.inflation.failure=3: input should be a number < 1;"),
    (pb.OwnModel, {"inflation": -1.0}, "own.inflation=-1.0: input should be a number > 0, or an instance of Theorem1"),
    (ForeignAlgorithm(reference="json:dumps", table={}).load, {}, "algorithm.type='json:dumps' is no dataclass; name"),
    (play, {"algorithm": pb.DPFTSDE}, "algorithm=DPFTSDE is a class; give its settings: DPFTSDE()"),
    (play, {"privacy": 2.0}, "privacy=2.0: input should be Privacy or NoPrivacy; write Privacy(epsilon=...)"),
    (pb.Privacy, ONE | {"noise_multiplier": 1.0}, "exactly one"),
    (pb.Privacy, {"epsilon": float("nan")}, "epsilon"),
    (pb.Privacy, ONE | {"noise": "none"}, "noise"),
    (pb.Privacy, ONE | {"delta": "papr"}, "delta"),
    (pb.Privacy, ONE | {"delta": 2.0}, "privacy.delta=2.0: input should be a number < 1, or 'paper'; correct it"),
    (pb.Privacy, ONE | {"budget": 2.0}, "own budget"),
    (pb.Privacy, ONE | {"sample_rate": 1.1}, "sample_rate"),
    (pb.Privacy, REWARD | {"sample_rate": 0.5}, "sample_rate"),
    (pb.Privacy, REWARD | {"sampling": "fixed-size"}, "sampling"),
    (pb.Privacy, REWARD | {"calibration": "paper"}, "calibration"),
    (pb.Privacy, REWARD | {"adaptive_clipping": pb.AdaptiveClipping(count_stddev=9.0)}, "clipping counts clients"),
    (pb.Privacy, REWARD | {"sampling": "random-allocation", "participations": 2}, "says nothing about one reward"),
    (
        pb.Privacy,
        REWARD | {"sampling": "truncated-poisson", "sample_rate": 1.0, "max_cohort": 3},
        "says nothing about one reward",
    ),
    (pb.Policy, BOUND | {"delta": 1.0}, "policy.delta"),
    (pb.Policy, BOUND | {"noise": ["none"]}, "policy.noise"),
    (pb.Policy, BOUND | {"rule": "planned"}, "policy.rule"),
    (shared_ledger, {"path": ""}, "ledger.path='': string should have at least 1 character"),
    (shared_ledger, {"population": ""}, "ledger.population=''"),
    (shared_ledger, {"delta": 1e-5}, "give both"),
    (shared_ledger, {"epsilon": 4.0}, "give both"),
    (shared_ledger, BOUND | {"rule": "hope"}, "ledger.rule='hope'"),
    (shared_ledger, BOUND | {"rule": "envelope"}, "0 releases: this rule reserves what is declared; give releases"),
    (shared_ledger, BOUND | {"rule": "gaussian", "releases": [releases(count=3)]}, "1 releases: this rule needs none"),
    (shared_ledger, {"rule": "renyi"}, NOT_HELD),
    (shared_ledger, {"releases": [releases(count=3)]}, NOT_HELD),
    (releases, {"count": 2, "sample_rate": 1.5}, "ledger.releases.sample_rate="),
    (releases, {"count": 0}, "ledger.releases.count="),
    (releases, {"count": 2, "participations": 2}, "participations=2 belongs to sampling='random-allocation'"),
    (Times, {"round_seconds": float("inf")}, "times.round_seconds"),
    (problem, {"n_clients": 1.5}, "n_clients"),
    (problem, {"objective": None}, "exactly one"),
    (problem, {"objective": abs, "batch_objective": abs}, "exactly one"),
    (problem, {"space": {}}, "empty"),
    (problem, {"score_range": (0.0, 5.0)}, "score_range"),
    (pb.SharedPrior, {"schedule": (0, 2, 5)}, "equal ones are shares=[1.0, 1.0, 1.0]"),
    (parameter, {}, "problem.space.x.type is missing; give it"),
    (
        parameter,
        {"type": "reel"},
        "problem.space.x.type='reel' must be one of 'real', 'int', 'categorical'",
    ),
    (pb.DPFTSDE, {"own": {"restarts": 1}}, "; make one: OwnModel(...)"),
    (pb.DPFTSDE, {"cuts": [{"parameter": "x", "at": [0.5]}]}, "; make one: Cut(...)"),
    (pb.OwnModel, {"inflation": {"failure": 0.1}}, "; make one: Theorem1(...)"),
    (pb.Privacy, ONE | {"adaptive_clipping": {"count_stddev": 1.0}}, "; make one: AdaptiveClipping(...)"),
]


@pytest.mark.parametrize(("make", "settings", "words"), IMPOSSIBLE)
def test_what_is_impossible_is_refused_with_value_bound_and_remedy(make, settings, words) -> None:
    """A fault in a union names the user's key once, with all that it may be."""
    with pytest.raises(pb.ConfigurationError) as refused:
        make(**settings)
    assert words in str(refused.value)


@settings(table="oven")
class Oven:
    """A table whose keys are words that pydantic uses, too."""

    watts: dict[str, Positive]


def test_the_users_own_keys_stay_in_the_message_whatever_they_are_called() -> None:
    words = r"^oven\.watts\.constrained-float=-1: input should be a number > 0; correct it$"
    with pytest.raises(pb.ConfigurationError, match=words):
        read_settings(Oven, {"watts": {"constrained-float": -1}}, "oven")


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
class After(Before):
    rate: Probability = field(default=0.75, metadata={"first": 0.5})
    added: bool = False


def test_departures_stay_the_same_table_when_a_setting_is_added_or_a_default_changed() -> None:
    """Old settings stay the table they were, and the new default gives another: what was paid for differs."""
    given = {"rate": 0.25, "parts": (Inner(size=4), Inner())}
    expected = {"rate": 0.25, "parts": [{"size": 4, "type": "inner"}, {"type": "inner"}]}
    assert dump_settings(Before(**given), defaults=False) == dump_settings(After(**given), defaults=False) == expected
    assert read_settings(After, expected, "") == After(**given)
    assert dump_settings(After(added=True), defaults=False) == {"added": True}
    assert dump_settings(After(rate=0.5), defaults=False) == {"rate": 0.5}
    assert dump_settings(After(rate=0.5), defaults="first") == dump_settings(Before(), defaults="first") == {}
    assert dump_settings(After(), defaults="first") == {"rate": 0.75}


# ---- settings of every algorithm


def test_numpy_numbers_lists_and_whole_numbers_are_taken() -> None:
    algorithm = pb.FedPNE(horizon=np.int64(900), c=np.float64(0.5), nu1=2, reward_range=[0, np.float64(1.0)])
    assert algorithm == pb.FedPNE(horizon=900, c=0.5, nu1=2.0, reward_range=(0.0, 1.0))
    assert type(algorithm.horizon) is int
    cut = pb.Cut(parameter="x", at=[0.25])
    assert pb.DPFTSDE(n_regions=2, cuts=[cut]) == pb.DPFTSDE(n_regions=2, cuts=(cut,))


@pytest.mark.parametrize(("tag", "kind"), algorithms().items())
def test_another_algorithms_tag_is_refused(tag: str, kind) -> None:
    with pytest.raises(pb.ConfigurationError, match=r"algorithm\.type='other'"):
        read_settings(kind, {"type": "other"}, "algorithm")
    assert settings_schema(kind)["properties"]["type"]["const"] == tag


@pytest.mark.parametrize(
    ("algorithm", "certified"),
    [
        (pb.DPFTSDE(), False),
        (pb.FedPNE(), True),
        (pb.FedPNE.heuristic(), False),
        (pb.ParallelXArmed(), True),
        (pb.ParallelXArmed(clip=0.1), False),
        (pb.PFPNE(stage2="in-phase"), True),
        (pb.PFPNE(stage2="in-phase", widen=0.5), False),
        (pb.PFPNE(), False),  # optimistic: the shared stage only advises, so nothing rests on it
        (pb.FederatedFLCB(), False),
        (PersonalElimination(), False),
    ],
)
def test_promises_that_rest_on_fixed_clipping_norms_refuse_adaptive_ones(algorithm: Any, certified: bool) -> None:
    assert algorithm.is_certified is certified
    privacy = pb.Privacy(noise_multiplier=2.0, adaptive_clipping=pb.AdaptiveClipping(count_stddev=2.0))
    with pytest.raises(pb.ConfigurationError, match="would break the guarantee") if certified else nullcontext():
        releases = pb.plan(problem(20), always(algorithm), privacy=privacy, rounds=3).releases
        assert releases >= 1 or isinstance(algorithm, PersonalElimination)


# ---- files that are written whole or not at all


def full_disk() -> AbstractContextManager[object]:
    return mock.patch("os.fsync", side_effect=OSError("disk full"))


def test_a_crash_while_writing_leaves_the_old_content(tmp_path) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, b"old")
    with full_disk(), pytest.raises(OSError, match="disk full"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("durable", [False, True])
def test_a_line_that_was_cut_off_is_dropped_and_spoils_none_that_comes_after_it(durable, tmp_path) -> None:
    path, kept = tmp_path / "lines", []
    assert files.read_lines(path) == []
    for cut in (b'{"a": 0', b'{"a": 3'):
        with path.open("ab") as file:
            file.write(cut)
        assert files.read_lines(path) == kept
        for row in ({"a": 1}, {"a": 2}):
            files.append_line(path, row, durable=durable)
            kept.append(row)
    assert files.read_lines(path) == kept


NEW = {
    "lines": partial(files.append_line, row={}, durable=True),
    "journal": lambda new: files.Journal(new, durable=True).append(b""),
}


@pytest.mark.parametrize("write", NEW.values(), ids=NEW)
def test_a_new_file_of_durable_lines_has_a_durable_name(write, tmp_path) -> None:
    synced = list[int]()
    with mock.patch("os.fsync", side_effect=lambda file: synced.append(os.fstat(file).st_ino)):
        write(tmp_path / "new")
    assert tmp_path.stat().st_ino in synced


def test_arrays_round_trip_without_pickles(tmp_path) -> None:
    path = tmp_path / "arrays.npz"
    arrays = {"a": np.arange(3.0), "b": np.array([[True]]), "c": np.zeros((0, 2))}
    files.save_arrays(path, arrays)
    for name, array in files.load_arrays(path).items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype
    with pytest.raises(TypeError, match="objects"):
        files.save_arrays(path, {"a": np.array([object()])})
    np.savez(path, a=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(RunError, match="pickle"):
        files.load_arrays(path)
    whole = files.array_bytes(arrays)
    for damaged in (b"", b"garbage", b"PK\x03\x04", whole[:-30], whole.replace(b"\xf0?", b"\0?")):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"arrays\.npz is damaged"):
            files.load_arrays(path)


def test_lines_that_several_writers_add_stand_once_and_never_change(tmp_path) -> None:
    path = tmp_path / "lines"
    writers = [files.OnceLines(path=path, key="round") for _ in range(3)]
    for index in range(4):
        for writer in writers:
            writer.add({"round": index, "head": f"h{index}"})
    with path.open("ab") as file:
        file.write(b'{"round": 9, "hea')  # a crash while appending
    files.OnceLines(path=path, key="round").add({"round": 4, "head": "h4"})
    assert files.read_lines(path) == [{"round": index, "head": f"h{index}"} for index in range(5)]
    with pytest.raises(RunError, match="ledger and history disagree"):
        writers[0].add({"round": 1, "head": "another"})
    assert len(files.read_lines(path)) == 5
    writers[0].durable = True
    with full_disk(), pytest.raises(OSError, match="disk full"):
        writers[0].add({"round": 5, "head": "h5"})
    os.truncate(path, path.stat().st_size - 20)  # nothing of it is there
    writers[0].add({"round": 5, "head": "h5"})
    assert files.read_lines(path)[-1] == {"round": 5, "head": "h5"}


@pytest.mark.parametrize("line", [b"[1]", b"3", b"{", b'{"a": "\xff"}', b"\0"])
def test_a_line_that_is_no_object_is_refused_in_our_words(line, tmp_path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"round": 0}\n' + line + b"\n")
    for read in (files.read_lines, lambda path: files.OnceLines(path=path, key="round").add({"round": 1})):
        with pytest.raises(RunError, match=r"lines can't be read .*; restore it from a copy"):
            read(path)


@pytest.mark.parametrize("durable", [False, True])
def test_a_journal_drops_a_torn_tail_and_goes_on(durable, tmp_path) -> None:
    path, records = tmp_path / "records", [b"first", b"second\n", b"third" * 9]
    whole = files.Journal(path, durable=durable)
    for record in records:
        whole.append(record)
    whole.close()
    content = path.read_bytes()
    for cut, zeros in ((size, n) for size in range(len(content)) for n in (size % 7, len(content) - size)):
        path.write_bytes(content[:cut] + bytes(zeros))  # a machine that lost its power
        if durable and cut < whole.first:  # the first one is put in place whole, so this was no crash
            with pytest.raises(RunError, match="damaged before its end"):
                files.Journal(path, durable=durable).append(b"next")
            continue
        kept = list(files.Journal(path, durable=durable).records())
        assert kept == records[: len(kept)]
        again = files.Journal(path, durable=durable)
        again.append(b"next")
        again.close()
        assert list(files.Journal(path, durable=durable).records()) == [*kept, b"next"]


def test_damage_before_the_end_is_refused_where_records_are_durable_and_cut_off_where_not(tmp_path) -> None:
    journal = files.Journal(tmp_path / "records", durable=True)
    for record in (b"first", b"second", b"third"):
        journal.append(record)
    sound = journal.path.read_bytes()
    for before in (28, 25, 12, 4, 0):  # in the second one's mark, in its length, in its checksum, in what it holds
        content = bytearray(sound)
        content[sound.index(b"second") - before] ^= 1
        journal.path.write_bytes(content)
        for look in (lambda each: list(each.records()), lambda each: each.append(b"next")):
            with pytest.raises(RunError, match="damaged before its end"):
                look(files.Journal(journal.path, durable=True))
        assert journal.path.read_bytes() == content
        assert list(files.Journal(journal.path, durable=False).records()) == [b"first"]


def test_after_an_error_the_next_record_stands_behind_the_last_whole_one(tmp_path) -> None:
    journal = files.Journal(tmp_path / "records", durable=True)
    journal.append(b"first")
    with full_disk(), pytest.raises(OSError, match="disk full"):
        journal.append(b"second")
    journal.append(b"third")
    assert list(files.Journal(journal.path, durable=True).records()) == [b"first", b"third"]


# ---- sample and aggregate: one record moves one score, whatever the learner does

COUNTS = (23, 40)


def learner(data):
    def train_and_score(client: int, params, rows) -> float:
        mine = data[client][rows]
        if np.any(mine > 1e6):
            raise SystemExit if np.any(mine > 1e10) else ValueError("a record that the learner can't read")
        if np.any(mine < 0):
            cast("dict[str, object]", params)["x"] = 7.0
        return float(str(params["x"])) + float(np.tanh(mine.mean() + mine.std()))

    return train_and_score


def scored(changed: float | None):
    data = [np.random.default_rng(client).random(count) for client, count in enumerate(COUNTS)]
    if changed is not None:
        data[0][7] = changed
    return pb.in_blocks(learner(data), n_records=COUNTS, n_blocks=5)(0, {"x": 0.5})


@pytest.mark.parametrize("changed", [0.0, -1.0, 1e3, np.nan, 1e9, 1e12])
def test_one_record_moves_one_score_even_if_its_block_fails(changed: float) -> None:
    same = np.isclose(scored(None), scored(changed), rtol=0.0, atol=0.0, equal_nan=True)
    assert np.sum(~same) == 1


def test_every_record_is_in_one_block() -> None:
    seen: list[int] = []
    pb.in_blocks(lambda _c, _p, rows: seen.extend(rows.tolist()) or 0.0, n_records=COUNTS, n_blocks=7)(1, {})
    assert sorted(seen) == list(range(COUNTS[1]))


@pytest.mark.parametrize("n_blocks", [0, 24])
def test_a_block_without_a_record_is_refused(n_blocks: int) -> None:
    with pytest.raises(pb.ConfigurationError, match="the fewest records of a client, 23"):
        pb.in_blocks(learner([]), n_records=COUNTS, n_blocks=n_blocks)


def accuracy(client: int, params, rows) -> float:
    return float(np.exp(-((float(str(params["x"])) - 0.4) ** 2)) - 0.001 * len(rows) - 0.01 * client)


def test_a_run_releases_the_mean_of_blocks() -> None:
    objective = pb.in_blocks(accuracy, n_records=[400] * 6, n_blocks=50)
    assert pickle.loads(pickle.dumps(objective))(0, {"x": 0.4}).shape == (50,)  # noqa: S301 (our own bytes)
    blocks = problem(6, objective=objective, n_records=[50] * 6)
    privacy = pb.Privacy(epsilon=8.0, delta=1e-6, unit="record", protects="records", noise="simulation")
    record = pb.run(blocks, pb.MultiTask(release_when="always"), privacy=privacy, rounds=2, seed=0)
    (release,) = record.releases
    assert record.epsilon() == pytest.approx(8.0, rel=2e-3)
    assert np.abs(release.values).max() < 50 * 0.5 + 7 * release.noise_stddev
