"""Judges of validation losses: one releases every answer, the other keeps its answers inside a selection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from accountant.errors import BudgetExceeded
from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.selection import secret_score
from privbo.protocol.messages import FloatArray, Request
from privbo.training.plan import RecordPrivacy


class LossJudge:
    """One release per answer, charged before losses are computed; a release made before is not made again.

    Args:
        door: Of the validation ledger.
        request: The mean over records of (loss - bound), each clipped to the bound.
        stddev: Standard deviation of its answers' noise.
    """

    def __init__(self, door: Door, request: Request, stddev: float) -> None:
        self._door, self._request, self._round = door, request, 0
        self._bound, self.stddev = request.clipping_norm, stddev

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


class SecretJudge:
    """Noisy mean losses that stay inside a selection; use it for the arms of ``CentralRun.select``."""

    def __init__(self, mechanism: PrivateSum, request: Request, *, noise: NoiseSource, allowance: RunAllowance) -> None:
        self._mechanism, self._request, self._noise, self._allowance = mechanism, request, noise, allowance
        self._bound, self._made, self.stddev = request.clipping_norm, 0, mechanism.noise_stddev()

    def __call__(self, losses: Callable[[], FloatArray]) -> float:
        """The noisy mean of clipped losses.

        Raises:
            BudgetExceeded: Outside of a run, or twice in one.
        """
        if self._allowance.judgements < 1:
            raise BudgetExceeded("a run's score is paid for once; judge a model inside its run only")
        self._allowance.judgements -= 1
        self._made += 1
        rows = np.asarray(losses())[:, None] - self._bound
        noise = self._noise.stream(f"run {self._made}")
        return secret_score(self._mechanism, self._request, rows, noise) + self._bound
