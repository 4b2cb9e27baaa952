"""How often ``compare`` claims a gain where there is none, and finds one of three errors, through runs and files."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.cli.run import control_of
from privbo.comparisons.verdict import Verdict
from privbo.protocol.files import save_arrays
from privbo.protocol.messages import Ask, Broadcast, ClientHistory, Release, Request, Setting
from privbo.runs.loop import run_spec

CLIENTS, ROUNDS, SEEDS, COMPARISONS = 4, 3, 8, 400
GAIN = 0.042  # about three standard errors of a comparison


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Clients draw points at random, moved by what they are told: the clients' mean, which is 1, or noise around 0.

    Attributes:
        gain: Move by a told mean.
        restless: Move by any release, however it came: noise helps as well.
    """

    gain: float = 0.0
    restless: float = 0.0
    alone: bool = False
    caveat: None = None
    is_certified: bool = False
    answers_together = True

    def server(self, setting: Setting) -> MovedServer:
        return MovedServer(self, setting)

    def cohort(self, setting: Setting, *, clients: Any, evaluate: Any, seed: int) -> MovedCohort:
        return MovedCohort(self, clients, evaluate, seed)

    def local(self) -> Moved:
        return replace(self, alone=True)


class MovedServer:
    def __init__(self, moved: Moved, setting: Setting) -> None:
        n = setting.n_clients
        self.request = None if moved.alone else Request(dim=1, clipping_norm=1.0, weights=np.full((1, n), 1 / n))
        self.rounds, self.round, self.told = setting.rounds, 0, np.zeros(1)

    def plan(self) -> Iterator[Request]:
        return iter([] if self.request is None else [self.request] * self.rounds)

    def ask(self) -> Ask | None:
        if self.round >= self.rounds:
            return None
        return Ask(broadcast=Broadcast(round=self.round, arrays={"told": self.told}), request=self.request)

    def tell(self, release: Release | None) -> None:
        if release is not None:
            self.told = release.values[0].copy()
        self.round += 1


@dataclass
class MovedCohort:
    moved: Moved
    clients: Any
    evaluate: Any
    seed: int
    units: list = field(default_factory=list)
    values: list = field(default_factory=list)

    def respond(self, broadcast: Broadcast) -> np.ndarray:
        if broadcast.round == len(self.values):
            told = float(broadcast.arrays["told"][0])
            # Every arm has draws of its own: what is told enters the seed.
            words = [self.seed, broadcast.round, *np.array([told, self.moved.alone]).view(np.uint32).tolist()]
            draws = np.random.default_rng(words).normal(size=len(self.clients))
            move = self.moved.gain * told + self.moved.restless * (told != 0.0)
            units = np.clip(0.5 + 0.05 * draws + move, 0.0, 1.0)[:, None]
            self.units.append(units)
            self.values.append(self.evaluate(self.clients, units))
        return np.ones((len(self.clients), 1))

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"units": np.array(self.units), "values": np.array(self.values)}

    def restore(self, snapshot: Any) -> None:
        self.units, self.values = list(snapshot["units"]), list(snapshot["values"])

    def history(self) -> ClientHistory:
        units, values = np.array(self.units).swapaxes(0, 1), np.array(self.values).T
        best = units[np.arange(len(units)), values.argmax(axis=1)]
        return ClientHistory(units=units, values=values, rounds=np.arange(values.shape[1]), recommended=best)


def judged(algorithm: Moved, comparison: int, folder: Path) -> Verdict:
    """The verdict of ``compare`` on stored runs of some seeds, each with its two controls."""
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda _, units: units[:, 0], n_clients=CLIENTS)
    runs = []
    for seed in range(SEEDS * comparison, SEEDS * (comparison + 1)):
        spec = pb.Spec(
            name="null", problem=problem, algorithm=algorithm, rounds=ROUNDS, seed=seed,
            privacy=pb.Privacy(noise_multiplier=0.2, noise="simulation"),
        )  # fmt: skip
        record = run_spec(spec, folder / str(seed))
        for control in ("local", "zeroed"):
            arm = run_spec(control_of(spec, control, record.home.seed), None)
            save_arrays(record.home.control_path(control, "npz"), vars(arm.clients))
        runs.append(record)
    verdict = pb.compare(runs, data="simulated").verdicts()[0]
    shutil.rmtree(folder)
    return verdict


def helped(found: list[Verdict]) -> int:
    return sum(verdict.answer == "helped" for verdict in found)


@pytest.mark.slow
def test_of_400_comparisons_of_nothing_at_most_35_claim_a_gain_and_three_errors_are_found(tmp_path: Path) -> None:
    null = [judged(Moved(), i, tmp_path / "null") for i in range(COMPARISONS)]
    error = float(np.sqrt(np.mean([one.standard_error**2 for one in null])))
    some = [judged(Moved(gain=GAIN), i, tmp_path / "gain") for i in range(COMPARISONS)]
    errors = np.mean([one.gain for one in some]) / error
    noisy = [judged(Moved(restless=GAIN), i, tmp_path / "noise") for i in range(COMPARISONS // 4)]
    blind = [dataclasses.replace(one, p_helped=one.p_hurt and 1.0 - one.p_hurt) for one in noisy]
    print(
        f"{helped(null)} of {COMPARISONS} null comparisons claim a gain; of {COMPARISONS} gains of {errors:.2f} errors "
        f"{helped(some)} are found; where noise alone brings it, {helped(noisy)} of {len(noisy)} claim it, and without "
        f"the noise-only arm {helped(blind)} would"
    )
    assert 2.8 < errors < 3.3
    assert helped(null) <= 35
    assert helped(noisy) <= len(noisy) / 5  # 5 expected at most; more than 20 has probability below 1e-7
    assert helped(some) >= 0.75 * COMPARISONS
    assert helped(blind) > len(blind) / 2  # the planted fault: the noise-only arm is not read
