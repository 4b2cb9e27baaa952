"""Best of a secret, random number of runs: only the best is released.

Papernot and Steinke 2022. Draw K, make K runs of one mechanism, each of a candidate chosen
uniformly with replacement, release the best one. Only that one is charged, but at more
than its own price. With the Rényi curve of *one* run (its judged score included) given as a
function of the order, and K truncated negative binomial (eta, gamma), Theorem 2 says: for
every order l and every other order m,

    eps'(l) = eps(l) + (1+eta)(1 - 1/m) eps(m) + (1+eta) log(1/gamma)/m + log E[K]/(l-1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from accountant.errors import EventError
from accountant.mechanisms.basic import Adjacency, Basic, Composed, DpCall, NonPrivate, compose
from accountant.mechanisms.pair import FloatArray

Curve = Callable[[FloatArray], FloatArray]


class BestOfRandomRuns(Basic):
    """The best of K runs of one mechanism, released alone; K is secret and random.

    K is truncated negative binomial (``TruncatedNegativeBinomial``); which candidate each run
    tries, the runs that are not released, and K itself stay secret.

    Proof: docs/proofs/private-selection.md.

    Attributes:
        run: What one run costs, the score it is judged by included; private itself.
        eta: Shape of K, > -1; 1 is geometric.
        gamma: Success probability in (0, 1); smaller means more runs.

    Example:
        >>> from accountant import Adjacency, Gaussian, renyi
        >>> run = compose([Gaussian(noise_multiplier=4.0)])
        >>> best = BestOfRandomRuns(run=run, eta=1.0, gamma=0.1)
        >>> prices = [renyi.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (run, best)]
        >>> prices[0] < prices[1] < 4 * prices[0]
        True
    """

    is_attained = False
    structured = ("run",)

    run: Composed
    eta: float
    gamma: float

    def __post_init__(self) -> None:
        run = compose([self.run])
        if not run.parts or any(isinstance(part, NonPrivate | BestOfRandomRuns) for part, _ in run.parts):
            raise EventError(f"BestOfRandomRuns.run must be a private event other than a selection, got {self.run!r}")
        object.__setattr__(self, "run", run)
        super().__post_init__()

    @property
    def _runs(self) -> TruncatedNegativeBinomial:
        return TruncatedNegativeBinomial(eta=self.eta, gamma=self.gamma)

    @property
    def text(self) -> str:
        return f"best of a secret random number of runs, one run: {self.run.text}"

    @property
    def sampler(self) -> str:
        return self.run.sampler

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return self._runs.curve(lambda at: _one_run(self.run, tuple(at.tolist()), adjacency), orders)

    def for_group(self, size: int, adjacency: Adjacency) -> BestOfRandomRuns | None:
        """The same of a run as it is for the group: the theorem takes a run's curve between any two data sets."""
        grown = [(part.for_group(size, adjacency), count) for part, count in self.run.parts]
        run = [(part, count) for part, count in grown if part is not None]
        return replace(self, run=compose(run)) if len(run) == len(grown) else None

    def seen_samples(self) -> tuple[Basic, int]:
        """Of the mechanism that also tells its run's sample: no run's curve is above that of what covers it then."""
        return replace(self, run=self.run.seen_samples()), 1

    def dp_event(self, factor: float) -> DpCall:
        arguments = {"event": self.run.dp_event(factor), "mean": self._runs.mean, "shape": self.eta}
        return DpCall("RepeatAndSelectDpEvent", arguments)

    def check(self, adjacency: Adjacency) -> None:
        for part, _ in self.run.parts:
            part.check(adjacency)


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial:
    """K >= 1; eta = 1 is the geometric distribution, eta = 0 the logarithmic one.

    Attributes:
        eta: Shape, > -1.
        gamma: Success probability in (0, 1); smaller means more runs.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1.0 and math.isfinite(self.eta)) or not 0.0 < self.gamma < 1.0:
            raise EventError(f"eta={self.eta!r} must be > -1 and gamma={self.gamma!r} lie in (0, 1)")

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        return max(1.0, (1.0 - self.gamma) / (self.gamma * self._scaled(1.0)))

    def _scaled(self, sign: float) -> float:
        """(1 - gamma^eta) / eta for sign 1, (gamma^-eta - 1) / eta for -1, also where they nearly cancel."""
        log = math.log(self.gamma)
        power = sign * self.eta * log
        return -sign * math.expm1(power) / self.eta if abs(power) > 1e-300 else -log

    def quantile(self, u: float) -> int:
        """K by inversion of P(k) = (1-gamma)^k / (gamma^-eta - 1) prod_{l<k} (l+eta)/(l+1), u in [0, 1)."""
        k, mass = 1, (1.0 - self.gamma) / self._scaled(-1.0)
        # Rounding may leave a rest of u that no mass takes up; subnormal numbers would not shrink to zero.
        while u > mass > sys.float_info.min:
            u -= mass
            mass *= (1.0 - self.gamma) * (k + self.eta) / (k + 1.0)
            k += 1
        return k

    def curve(self, one_run: Curve, orders: FloatArray) -> FloatArray:
        """Rényi curve of the selection at ``orders`` > 1 (Theorem 2; the second order is optimised)."""
        others = second_orders()
        log_gamma = math.log(1.0 / self.gamma)
        extra = (1.0 + self.eta) * ((1.0 - 1.0 / others) * one_run(others) + log_gamma / others)
        return np.asarray(one_run(orders) + extra.min() + math.log(self.mean) / (orders - 1.0))


def gamma_of(mean: float, *, eta: float) -> float:
    """Gamma at which K has this mean > 1; the shortest decimal that has it exactly, else rounded to more runs.

    Raises:
        EventError: ``eta`` or ``mean`` out of range.
    """
    from scipy.optimize import brentq

    if not mean > 1.0 or not math.isfinite(mean):
        raise EventError(f"mean={mean!r} of the number of runs must be above 1 and finite")

    def excess(log_gamma: float) -> float:
        return math.log(TruncatedNegativeBinomial(eta=eta, gamma=math.exp(log_gamma)).mean / mean)

    low = -1.0
    while excess(low) < 0.0:
        low *= 2.0
    root = math.exp(brentq(excess, low, -1e-12, xtol=1e-15)) if excess(-1e-12) < 0.0 else math.exp(-1e-12)
    for digits in range(1, 18):
        gamma = float(f"{root:.{digits}g}")
        if gamma < 1.0 and TruncatedNegativeBinomial(eta=eta, gamma=gamma).mean == mean:
            return gamma
    return root * (1.0 - 1e-12)


def second_orders() -> FloatArray:
    """Orders among which Theorem 2's second one is chosen: 1.05 to 1024, denser where optima lie."""
    return np.asarray(1.0 + np.geomspace(0.05, 1023.0, 96))


@lru_cache(maxsize=256)
def _one_run(run: Composed, orders: tuple[float, ...], adjacency: Adjacency) -> FloatArray:
    """Divergence of one run of a selection; its second orders are asked for again and again."""
    at = np.array(orders)
    rows = [count * part.renyi_curve(at, adjacency) for part, count in run.parts]
    return np.asarray(np.sum(rows, axis=0))
