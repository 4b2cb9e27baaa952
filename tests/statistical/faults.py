"""Faults to hand in where the shipped release goes; a test that misses one of them is worth nothing.

A fault is a mechanism that says one thing and does another, or arithmetic in the place of ``sums.noisy_sums``.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accountant.events import Event, PoissonSampledGaussian
from privbo.audits import empirical
from privbo.door import sums
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.payload import vet_rows
from privbo.protocol.messages import BoolArray, FloatArray, Request
from tests.door.replayed_runs import through_the_door

Arithmetic = Callable[[PrivateSum, FloatArray, FloatArray, BoolArray, NoiseSource], FloatArray]


def settings_of(sound: PrivateSum) -> dict[str, object]:
    return {field.name: getattr(sound, field.name) for field in dataclasses.fields(PrivateSum)}


# --- mechanisms -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QuieterSum(PrivateSum):
    """Draws ``factor`` times the noise that it states."""

    factor: float

    def grid_scale(self) -> float:
        return self.factor * super().grid_scale()


class WideSum(PrivateSum):
    """Clips to S per block instead of S / sqrt(P)."""

    @property
    def applied_bound(self) -> float:
        return self.clipping_norm


class ForgetfulSum(PrivateSum):
    """Has noise for the client that leaves a fixed-size sample, and none for the one that takes its slot."""

    @property
    def factor(self) -> float:
        return self.vector_bound * self.geometry.largest_norms[-1] / (super().sensitivity() * self.sample.rate)

    def noise_stddev(self) -> float:
        return self.factor * super().noise_stddev()

    def grid_scale(self) -> float:
        return self.factor * super().grid_scale()


class BoastingSum(ForgetfulSum):
    """Charges a fixed-size sample as a Poisson sample."""

    def event(self) -> Event:
        return PoissonSampledGaussian(sample_rate=self.sample.rate, noise_multiplier=self.noise_multiplier)


def quieter(sound: PrivateSum, factor: float) -> PrivateSum:
    """The same mechanism with ``factor`` times its noise and the same words about it."""
    return QuieterSum(**settings_of(sound), factor=factor)


# --- faults ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something done wrong.

    Attributes:
        plant: Makes the mechanism that does it, of a sound one.
        arithmetic: Does it in the place of the shipped sums; None for these.
    """

    plant: Callable[[PrivateSum], PrivateSum] = lambda sound: sound
    arithmetic: Arithmetic | None = None

    def releases(self, mechanism, weights, rows, trials, noise) -> FloatArray:
        """For ``audit_curve``: many releases of vectors of length one."""
        if self.arithmetic is None:
            return empirical.releases(mechanism, weights, rows, trials, noise)
        participation = mechanism.sample.draw(trials, noise)
        clipped = clip_rows(rows, mechanism.applied_bound)
        return self.arithmetic(mechanism, weights, clipped, participation, noise)[:, :, 0]

    def play(
        self, mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource
    ) -> tuple[FloatArray, Event]:
        """For ``replay``: one release, through the door where the mechanism is what is wrong."""
        if self.arithmetic is None:
            return through_the_door(mechanism, request, rows, noise)
        participants = mechanism.sample.draw(1, noise)[0]
        vetted = vet_rows(rows, n_clients=request.n_clients, dim=request.dim)
        clipped = clip_rows(vetted, mechanism.applied_bound)
        values = self.arithmetic(mechanism, request.weights, clipped, participants[None], noise)[0]
        return values, mechanism.event()


def planted(combined: Callable[[FloatArray, FloatArray, BoolArray, float], FloatArray]) -> Fault:
    """Sums and noise of a release that are combined in another way; who takes part, and at which rate, is given."""

    def arithmetic(mechanism, weights, clipped, participation, noise) -> FloatArray:
        step = mechanism.grid_step()
        totals = sums.lattice_sums(weights, clipped, participation, step)
        drawn = noise.gaussian(totals.shape, mechanism.grid_scale())
        return combined(totals * step, drawn * step, participation, mechanism.sample.rate)

    return Fault(arithmetic=arithmetic)


def share(participation: BoolArray) -> FloatArray:
    """The realised rate of every release's sample, of one client at least."""
    return np.maximum(participation.sum(axis=1), 1)[:, None, None] / participation.shape[1]


SOUND = Fault()
SOUND_ARITHMETIC = Fault(arithmetic=sums.noisy_sums)
FAULTS = {
    "std / sqrt(2)": Fault(plant=lambda sound: quieter(sound, 2**-0.5)),
    "noise not divided by q": planted(lambda totals, noise, _, rate: totals / rate + noise),
    "clip S per block instead of S / sqrt(P)": Fault(plant=lambda sound: WideSum(**settings_of(sound))),
    "fixed-size sampling accounted as Poisson": Fault(plant=lambda sound: BoastingSum(**settings_of(sound))),
    "fixed-size sampling with the zero-out sensitivity": Fault(plant=lambda sound: ForgetfulSum(**settings_of(sound))),
    "division by the realised count": planted(lambda totals, noise, who, rate: totals / share(who) + noise / rate),
    "the same noise for two blocks": planted(lambda totals, noise, _, rate: (totals + noise[:, :1]) / rate),
    "noiseless empty sample": planted(
        lambda totals, noise, who, rate: (totals + noise * who.any(axis=1)[:, None, None]) / rate
    ),
    "std x 0.95": Fault(plant=lambda sound: quieter(sound, 0.95)),
}
FIXED_SIZE = {name for name in FAULTS if name.startswith("fixed-size")}
