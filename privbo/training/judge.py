"""The door for validation losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privbo.door.door import Door
from privbo.door.mechanism import PrivateSum, WeightGeometry
from privbo.protocol.messages import FloatArray, Request


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


def loss_request(n_records: int, loss_bound: float) -> Request:
    """The mean over records of (loss - bound), each within the bound."""
    weights = np.full((1, n_records), 1.0 / n_records)
    return Request(dim=1, clipping_norm=loss_bound, weights=weights)


def loss_mechanism(n_records: int, loss_bound: float, noise_multiplier: float) -> PrivateSum:
    """Mechanism that answers ``loss_request``."""
    geometry = WeightGeometry.of(loss_request(n_records, loss_bound).weights)
    return PrivateSum(clipping_norm=loss_bound, geometry=geometry, noise_multiplier=noise_multiplier)
