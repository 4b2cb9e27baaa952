"""Clients of an algorithm of the user's own: what one of them raises is its own failure, and its own alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.protocol.messages import Broadcast, Cohort, FloatArray, Setting
from tests.builders import StoppedError, stopping
from tests.conformance.cases import problem
from tests.deployment.federations import make
from tests.deployment.reading import releases, sites

N_CLIENTS, ROUNDS, BAD = 7, 3, 2
PRIVACY = pb.Privacy(noise_multiplier=1.0, noise="simulation")


def throw(error: BaseException) -> None:
    raise error


RAISED: dict[str, Callable[[], Any]] = {
    "LinAlgError": lambda: np.linalg.cholesky(-np.eye(2)),
    "SystemExit": lambda: throw(SystemExit(3)),
    "KeyboardInterrupt": lambda: throw(KeyboardInterrupt()),
    "GeneratorExit": lambda: throw(GeneratorExit()),
    "MemoryError": lambda: throw(MemoryError()),
    "RecursionError": lambda: deeper(0),
    "another shape": lambda: np.zeros((1, 3)),
    "no array": lambda: "text",
    "two clients": lambda: np.zeros((2, 8)),
}


def deeper(level: int) -> int:
    return deeper(level + 1) + 1


@dataclasses.dataclass(frozen=True)
class Fragile(Zoom):
    """Zoom, whose code for one client fails in a way of its own where that client's data is odd."""

    fault: str = ""
    when: int = 1
    where: str = "respond"

    def cohort(self, setting: Setting, *, clients: Any, evaluate: Any, seed: int) -> Cohort:
        if self.where == "made" and self.fault and BAD in clients and len(clients) < N_CLIENTS:
            RAISED[self.fault]()
        return FragileCohort(self, super().cohort(setting, clients=clients, evaluate=evaluate, seed=seed))


@dataclasses.dataclass
class FragileCohort:
    own: Fragile
    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def respond(self, broadcast: Broadcast) -> Any:
        found = self.inner.respond(broadcast)
        odd = self.own.fault and BAD in self.inner.clients and broadcast.round >= self.own.when
        return RAISED[self.own.fault]() if odd and self.own.where == "respond" else found

    def snapshot(self) -> Any:
        if self.own.where == "snapshot" and self.own.fault and BAD in self.inner.clients:
            RAISED[self.own.fault]()
        return self.inner.snapshot()


def played(algorithm: Any, **settings: Any) -> tuple[pb.Record, list[FloatArray]]:
    """A run, and the numbers that left in its rounds."""
    record = pb.run(problem(), algorithm, privacy=PRIVACY, rounds=ROUNDS, seed=3, **settings)
    return record, [release.values for release in record.releases]


@pytest.mark.parametrize("where", ["respond", "made", "snapshot"])
@pytest.mark.parametrize("fault", RAISED)
def test_whatever_a_clients_own_code_raises_is_that_clients_absence_and_changes_nothing_else(
    fault: str, where: str
) -> None:
    """Held against the same client being away from that round on: the same numbers, bit for bit."""
    if where != "respond" and fault in ("another shape", "no array", "two clients"):
        pytest.skip("only an answer has a shape")
    odd, numbers = played(Fragile(fault=fault, where=where))
    first = 1 if where == "respond" else 0
    away, expected = played(Away(first=first))
    for ours, theirs in zip(numbers[: first + 1], expected[: first + 1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(numbers) == ROUNDS == len(odd.ledger.entries()) == len(away.ledger.entries())
    assert set(odd.failures) == {BAD}
    assert fault in odd.failures[BAD] or "shape" in odd.failures[BAD] or "could not convert" in odd.failures[BAD]
    assert np.isfinite(odd.clients.values[np.arange(N_CLIENTS) != BAD]).any(axis=1).all()


@dataclasses.dataclass(frozen=True)
class Away(Zoom):
    """Zoom without the answers of one client from a round on."""

    first: int = 0

    def cohort(self, setting: Setting, *, clients: Any, evaluate: Any, seed: int) -> Cohort:
        return AwayCohort(self.first, super().cohort(setting, clients=clients, evaluate=evaluate, seed=seed))


@dataclasses.dataclass
class AwayCohort:
    first: int
    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def respond(self, broadcast: Broadcast) -> FloatArray:
        found = np.array(self.inner.respond(broadcast), dtype=np.float64)
        if broadcast.round >= self.first:
            found[self.inner.clients == BAD] = np.nan
        return found


def test_clients_asked_one_by_one_give_what_all_of_them_at_once_give(tmp_path: Path) -> None:
    class AtOnce(Zoom):
        answers_together = True

    apart, numbers = played(Zoom())
    together, expected = played(AtOnce())
    for ours, theirs in zip(numbers, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(apart.clients.values, together.clients.values)


def test_a_run_of_separate_clients_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    _, expected = played(Fragile(fault="SystemExit", when=0))

    with pytest.raises(StoppedError):
        played(Fragile(fault="SystemExit", when=0), directory=tmp_path / "run", on_round=stopping(1))
    record, numbers = played(Fragile(fault="SystemExit", when=0), directory=tmp_path / "run", resume=True)
    for ours, theirs in zip(numbers, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert set(record.failures) == {BAD}


def test_an_algorithm_whose_clients_fail_on_made_up_values_is_refused_before_the_first_charge(tmp_path: Path) -> None:
    class Mistyped(Zoom):
        def cohort(self, setting: Setting, **named: Any) -> Cohort:
            return MistypedCohort(super().cohort(setting, **named))

    class MistypedCohort(FragileCohort):
        def __init__(self, inner: Any) -> None:
            super().__init__(Fragile(), inner)

        def respond(self, broadcast: Broadcast) -> Any:
            return self.inner.respnd(broadcast)

    with pytest.raises(pb.ConfigurationError, match=r"made-up values.*respnd.*[Nn]othing was charged"):
        pb.run(problem(), Mistyped(), privacy=pb.Privacy(epsilon=2), rounds=ROUNDS, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_at_a_site_a_clients_error_is_its_own_and_not_its_neighbours(tmp_path: Path) -> None:
    table = {"type": "tests.runs.test_separate:Fragile", "fault": "SystemExit", "when": 0}
    federation = make(tmp_path / "odd", table)
    federation.play()
    made, (first, *_) = releases(federation), sites(federation)
    _, expected = played(Away(first=0))
    np.testing.assert_allclose(made[0].values, expected[0], rtol=0, atol=1e-12)
    assert np.isfinite(first["values"]).any(axis=1).sum() == first["values"].shape[0] - 1
