"""Judges of validation losses: one releases every answer, the other keeps its answers inside a selection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from accountant.errors import BudgetExceeded
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum, WeightGeometry
from privbo.door.noise import NoiseSource
from privbo.door.selection import secret_score
from privbo.protocol.messages import FloatArray, Request
from privbo.training.plan import RecordPrivacy


class LossJudge:
    """One release per answer, charged before losses are computed; a release made before is not made again.

    Args:
        door: Of the validation ledger.
        n_records: Validation records.
        loss_bound: Losses are sent as (loss - bound), clipped to the bound.
        mechanism: What answers.
    """

    def __init__(self, door: Door, *, n_records: int, loss_bound: float, mechanism: PrivateSum) -> None:
        self._request = loss_request(n_records, loss_bound)
        self._door, self._bound, self._round = door, loss_bound, 0
        self.stddev = mechanism.noise_stddev()

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses; a loss that is not finite counts as the middle."""
        ticket = self._door.open(self._round, self._request, plan_position=self._round)
        self._round += 1
        release = ticket.release
        if release is None:
            release, _ = self._door.close(ticket, np.asarray(losses())[:, None] - self._bound)
        return float(release.values[0, 0]) + self._bound


@dataclass(kw_only=True)
class RunAllowance:
    """Allowance of the run that is being made; a selection opens it run by run.

    Attributes:
        steps: DP-SGD steps.
        judgements: Noisy mean losses.
    """

    steps: int = 0
    judgements: int = 0

    @contextmanager
    def for_one_run(self, privacy: RecordPrivacy) -> Iterator[None]:
        """Allow what one run was priced for; nothing any more when the run is left."""
        self.steps, self.judgements = privacy.pulls * privacy.steps, privacy.pulls
        try:
            yield
        finally:
            self.steps = self.judgements = 0

    def take_steps(self, count: int) -> None:
        """Use up ``count`` steps.

        Raises:
            BudgetExceeded: If the run was not paid for that many.
        """
        if count > self.steps:
            raise BudgetExceeded(
                f"{count} steps, the run has {self.steps} of what was paid for; train inside select only"
            )
        self.steps -= count

    def take_judgement(self) -> None:
        """Use up one judgement.

        Raises:
            BudgetExceeded: Outside of a run, or once more than the run was paid for.
        """
        if self.judgements < 1:
            raise BudgetExceeded("a run's score is paid for once; judge a model inside its run only")
        self.judgements -= 1


class SecretJudge:
    """Noisy mean losses that stay inside a selection; use it for the arms of ``PrivateSelection.select``."""

    def __init__(
        self,
        *,
        n_records: int,
        loss_bound: float,
        noise_multiplier: float,
        noise: NoiseSource,
        allowance: RunAllowance,
    ) -> None:
        self._request = loss_request(n_records, loss_bound)
        self._mechanism = loss_mechanism(n_records, loss_bound, noise_multiplier)
        self._bound, self._noise, self._made = loss_bound, noise, 0
        self._allowance = allowance
        self.stddev = self._mechanism.noise_stddev()

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses.

        Raises:
            BudgetExceeded: Outside of a run, or twice in one.
        """
        self._allowance.take_judgement()
        self._made += 1
        rows = np.asarray(losses())[:, None] - self._bound
        noise = self._noise.stream(f"run {self._made}")
        return secret_score(self._mechanism, self._request, rows, noise) + self._bound


def loss_request(n_records: int, loss_bound: float) -> Request:
    """The mean over records of (loss - bound), each within the bound."""
    weights = np.full((1, n_records), 1.0 / n_records)
    return Request(dim=1, clipping_norm=loss_bound, weights=weights)


def loss_mechanism(n_records: int, loss_bound: float, noise_multiplier: float) -> PrivateSum:
    """Mechanism that answers ``loss_request``."""
    geometry = WeightGeometry.of(loss_request(n_records, loss_bound).weights)
    return PrivateSum(clipping_norm=loss_bound, geometry=geometry, noise_multiplier=noise_multiplier)
