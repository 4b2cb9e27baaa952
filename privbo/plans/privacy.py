"""What privacy a user may ask for: a target epsilon or a noise multiplier, and whose ledger pays.

What that means for a given plan is ``privbo.plans.plan``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

from accountant.events import Adjacency
from privbo.door.reward_unit import require_reward_unit
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import UnitName


def paper_delta(n_clients: int) -> float:
    """N^-1.1, the delta of the federated Bayesian optimisation papers."""
    return min(0.5, math.pow(n_clients, -1.1))


def default_delta(n_clients: int) -> float:
    """min(1e-5, 1/(10 N)): well below the 1/N at which publishing one random client passes."""
    return min(1e-5, 0.1 / n_clients)


_CHOICES = {
    "calibration": ("tight", "paper"),
    "sampling": ("poisson", "fixed-size"),
    "noise": ("secure", "exact", "simulation"),
    "channel": ("open", "anonymous"),
    "unit": ("client", "reward"),
}


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Clip at a noisy quantile of the norms, found as the run goes, within the same price.

    A statistical guarantee that rests on a fixed clipping norm (certified
    eliminations) does not hold with it; privacy is unchanged.

    Attributes:
        target_quantile: Share of vectors that should be within the bound, in (0, 1).
        learning_rate: How fast the bound moves.
        count_stddev: Noise standard deviation of the count of clients within the bound; it
            must be worth more than the release's own noise multiplier.
    """

    count_stddev: float
    target_quantile: float = 0.5
    learning_rate: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy of a run: a target epsilon, or a noise multiplier.

    Attributes:
        epsilon: Target; the noise is calibrated so that the whole plan costs no more.
        noise_multiplier: z, noise standard deviation over L2 sensitivity, instead of a target.
        sample_rate: q, the probability with which a client takes part in a release. At 1
            (the default) a fixed number of rounds needs the least noise, no secrecy of
            the sample, and the price is exact.
        delta: Failure probability; None is ``min(1e-5, 1/(10 N))``, ``"paper"`` is N^-1.1.
        calibration: ``"tight"`` scales noise to the true sensitivity of the weights,
            ``"paper"`` draws the paper's noise (scaled to phi_max S) and charges the true
            multiplier.
        sampling: ``"poisson"``: every client by its own secret coin; ``"fixed-size"``: a
            secret subset of ``round(q N)`` clients, with its own larger sensitivity.
        adaptive_clipping: Move the clipping norm to a noisy quantile; None keeps what is asked.
        budget: Epsilon at ``delta`` that the ledger refuses to pass, beside a noise multiplier
            (a target epsilon is its own budget). A plan that costs more is refused before
            any data is touched.
        noise: ``"secure"`` is cryptographic noise; ``"exact"`` OpenDP's discrete Gaussian (the
            extra ``exact``, slower); ``"simulation"`` is seeded noise, for
            experiments only: no guarantee, and every report says so.
        channel: ``"open"``: who sends may be seen, so every client sends in every round and the
            sample stays secret; ``"anonymous"``: the channel hides who sends, so clients outside
            a round's sample send nothing (communication falls by the sample rate). A
            transport that can't hide it refuses.
        unit: Whose data is hidden. ``"client"``: all of one client. ``"reward"``: the
            outcome of one evaluation, for algorithms that can bound what it does; far less
            noise, and a client's habits as a whole stay unprotected. A run then costs
            what its dearest release costs, because no reward enters two.

    Raises:
        ConfigurationError: If not exactly one of epsilon and noise_multiplier is given
            or a value is out of range.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    sample_rate: float = 1.0
    delta: float | Literal["paper"] | None = None
    calibration: Literal["tight", "paper"] = "tight"
    sampling: Literal["poisson", "fixed-size"] = "poisson"
    adaptive_clipping: AdaptiveClipping | None = None
    budget: float | None = None
    noise: Literal["secure", "exact", "simulation"] = "secure"
    channel: Literal["open", "anonymous"] = "open"
    unit: UnitName = "client"

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigurationError(
                f"privacy: epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}; "
                "give exactly one of them"
            )
        for name in ("epsilon", "noise_multiplier", "budget"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"privacy.{name}={value!r} must be a finite number > 0")
        if not 0 < self.sample_rate <= 1:
            raise ConfigurationError(f"privacy.sample_rate={self.sample_rate!r} must lie in (0, 1]")
        if self.budget is not None and self.epsilon is not None:
            raise ConfigurationError("privacy: a target epsilon is its own budget; drop budget")
        if self.delta not in (None, "paper") and not (isinstance(self.delta, float) and 0 < self.delta < 1):
            raise ConfigurationError(f"privacy.delta={self.delta!r} must lie in (0, 1), or be 'paper'")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"privacy.{name}={getattr(self, name)!r} must be one of {allowed}")
        if self.unit == "reward":
            self._require_reward_unit()

    def _require_reward_unit(self) -> None:
        require_reward_unit(self.sample_rate, self.sampling, self.calibration, self.adjacency)
        if self.adaptive_clipping is not None:
            raise ConfigurationError(
                "adaptive_clipping counts clients, and one reward may move a count by a whole client; drop it, or "
                "set privacy.unit='client'"
            )

    @property
    def adjacency(self) -> Adjacency:
        """Of every event: a client leaves by sending zero, a reward is replaced by another one."""
        return Adjacency.REPLACE_ONE if self.unit == "reward" else Adjacency.ZERO_OUT

    @property
    def bound(self) -> float | None:
        """Epsilon the ledger refuses to pass; None if there is no bound."""
        return self.budget if self.epsilon is None else self.epsilon

    def resolved_delta(self, n_clients: int) -> float:
        """The delta as a number for N clients; warns where it is too large to mean much."""
        if self.delta == "paper":
            delta = paper_delta(n_clients)
            warnings.warn(
                f"delta = N^-1.1 = {delta:.3g} follows the papers; publishing one random client whole "
                f"satisfies delta = 1/N = {1 / n_clients:.3g}, so read epsilon at 1e-5 beside it",
                stacklevel=2,
            )
            return delta
        return default_delta(n_clients) if self.delta is None else float(self.delta)


@dataclass(frozen=True, kw_only=True)
class NoPrivacy:
    """A non-private baseline: the plain sum leaves the clients, epsilon is infinity."""


@dataclass(frozen=True, kw_only=True)
class SharedLedger:
    """A population's ledger that several runs on the same people charge.

    Attributes:
        path: The ledger's file; made by the first run that names it.
        population: Name of the people; runs on other people need another ledger.
        epsilon: Bound on all runs together, or None; fixed when the ledger is made.
        delta: Of that bound.

    Raises:
        ConfigurationError: If only one of epsilon and delta is given.
    """

    path: str
    population: str
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if not self.path or not self.population:
            raise ConfigurationError("ledger: path and population must not be empty")
        if (self.epsilon is None) != (self.delta is None):
            raise ConfigurationError(
                f"ledger: epsilon={self.epsilon!r}, delta={self.delta!r}; give both (a bound) or neither"
            )
