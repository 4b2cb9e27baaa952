"""Faults planted into the shipped release path; a test that misses one of them is worth nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accountant.events import PoissonSampledGaussian
from privbo.door import sums
from privbo.door.mechanism import PrivateSum

Patch = Callable[[pytest.MonkeyPatch], None]


def _scaled_noise(factor: float) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        sound = PrivateSum.grid_scale
        patch.setattr(PrivateSum, "grid_scale", lambda self: factor * sound(self))

    return plant


def _noise_not_divided_by_the_rate(patch: pytest.MonkeyPatch) -> None:
    def noisy_sums(mechanism, weights, clipped, participation, noise):
        step = mechanism.grid_step()
        totals = sums.lattice_sums(weights, clipped, participation, step)
        drawn = noise.gaussian(totals.shape, mechanism.grid_scale())
        return totals * step / mechanism.rate + drawn * step

    patch.setattr(sums, "noisy_sums", noisy_sums)


def _clipped_per_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivateSum, "applied_bound", property(lambda self: self.clipping_norm))


def _fixed_size_accounted_as_poisson(patch: pytest.MonkeyPatch) -> None:
    def event(self):
        return PoissonSampledGaussian(sample_rate=self.rate, noise_multiplier=self.noise_multiplier)

    patch.setattr(PrivateSum, "event", event)
    _fixed_size_with_zero_out_sensitivity(patch)


def _fixed_size_with_zero_out_sensitivity(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivateSum, "_sum_sensitivity", lambda self: self.vector_bound * self.geometry.largest_norms[-1])


def _divided_by_the_realised_count(patch: pytest.MonkeyPatch) -> None:
    def noisy_sums(mechanism, weights, clipped, participation, noise):
        step = mechanism.grid_step()
        totals = sums.lattice_sums(weights, clipped, participation, step)
        drawn = noise.gaussian(totals.shape, mechanism.grid_scale())
        count = np.maximum(participation.sum(axis=1), 1)[:, None, None] / participation.shape[1]
        return totals * step / count + drawn * step / mechanism.rate

    patch.setattr(sums, "noisy_sums", noisy_sums)


def _same_noise_for_all_blocks(patch: pytest.MonkeyPatch) -> None:
    def noisy_sums(mechanism, weights, clipped, participation, noise):
        step = mechanism.grid_step()
        totals = sums.lattice_sums(weights, clipped, participation, step)
        drawn = noise.gaussian((len(totals), 1, totals.shape[2]), mechanism.grid_scale())
        return (totals + drawn) * step / mechanism.rate

    patch.setattr(sums, "noisy_sums", noisy_sums)


def _noiseless_empty_sample(patch: pytest.MonkeyPatch) -> None:
    def noisy_sums(mechanism, weights, clipped, participation, noise):
        step = mechanism.grid_step()
        totals = sums.lattice_sums(weights, clipped, participation, step)
        drawn = noise.gaussian(totals.shape, mechanism.grid_scale())
        return (totals + drawn * participation.any(axis=1)[:, None, None]) * step / mechanism.rate

    patch.setattr(sums, "noisy_sums", noisy_sums)


FAULTS: dict[str, Patch] = {
    "std / sqrt(2)": _scaled_noise(2**-0.5),
    "noise not divided by q": _noise_not_divided_by_the_rate,
    "clip S per block instead of S / sqrt(P)": _clipped_per_block,
    "fixed-size sampling accounted as Poisson": _fixed_size_accounted_as_poisson,
    "fixed-size sampling with the zero-out sensitivity": _fixed_size_with_zero_out_sensitivity,
    "division by the realised count": _divided_by_the_realised_count,
    "the same noise for two blocks": _same_noise_for_all_blocks,
    "noiseless empty sample": _noiseless_empty_sample,
    "std x 0.95": _scaled_noise(0.95),
}
FIXED_SIZE = {name for name in FAULTS if name.startswith("fixed-size")}
