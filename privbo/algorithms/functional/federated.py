"""Federated F-LCB: many clients, a few functions, which one has the smallest mean and where.

The arms are the values of one finite parameter of the space (or there is only one arm);
the other parameters are real and live in the unit cube. Every round broadcasts an arm
and a point; clients answer with the clipped gradient and the clipped loss there in one
vector, which is one release. The release's noise is the inexact oracle's: it enters the
step sizes, the rate g, and a confidence width of its own for the loss, so

    LCB = loss - g(k, delta; s) - (s / w) sqrt(2 log(2 K T / delta)),

with s the noise per entry and w the loss's scale in the vector. Noisy values are never
replaced by the best one so far. The plan is T equal releases, whatever arms are chosen;
stopping early is allowed and the plan's epsilon is quoted.

Gradients are taken on the clients by central differences of the objective (2 n + 1
evaluations, free of privacy cost, not part of the history). Everything certified assumes
that clipping binds nobody and that everyone takes part; both are visible in an audit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privbo.algorithms.functional.bounds import Violation
from privbo.algorithms.functional.federated_clients import FederatedCohort, LocalCohort
from privbo.algorithms.functional.federated_search import Arms, Search
from privbo.algorithms.functional.optimisers import Rates
from privbo.algorithms.functional.sets import require_positive
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Cohort, Evaluate, FloatArray, IntArray, Release, Request, Setting
from privbo.protocol.space import Categorical, Real, Space


@dataclass(frozen=True, kw_only=True)
class FederatedFLCB:
    """F-LCB over the values of one parameter, at user level.

    Attributes:
        arm: Name of the categorical parameter that names the function; None: one function.
        reward_range: Declared bounds of a score (larger is better); it is clipped to them.
        gradient_bound: Largest norm of a client's gradient in unit coordinates; longer ones
            are clipped.
        loss_share: Norm of the loss's part of the vector over the gradient's.
        smoothness: L of the mean loss in unit coordinates.
        start: Where every arm starts, in every unit coordinate.
        difference: Half-width of the central differences.
        delta_b: Failure probability of one rate (not of privacy); None is 1/(K T^2).
        rates: ``"certified"`` or ``"printed"`` (drops constants; a heuristic).
        tolerance: Stop when the selected arm's minimum is surely within it of the best.
        share: ``"gradients"``, or ``"nothing"``: each client for itself.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    arm: str | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    gradient_bound: float = 1.0
    loss_share: float = 1.0
    smoothness: float = 4.0
    start: float = 0.5
    difference: float = 1e-3
    delta_b: float | None = None
    rates: Rates = "certified"
    tolerance: float | None = None
    share: Literal["gradients", "nothing"] = "gradients"

    def __post_init__(self) -> None:
        require_positive(
            gradient_bound=self.gradient_bound,
            loss_share=self.loss_share,
            smoothness=self.smoothness,
            difference=self.difference,
        )
        low, high = self.reward_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(f"reward_range={self.reward_range!r} must be finite and increasing")
        if not 0.0 <= self.start <= 1.0 or self.difference > 0.25:
            raise ConfigurationError(
                f"start={self.start!r} must lie in [0, 1], difference={self.difference!r} below 0.25"
            )
        if self.delta_b is not None and not 0.0 < self.delta_b < 1.0:
            raise ConfigurationError(f"delta_b={self.delta_b!r} must lie in (0, 1)")
        if self.tolerance is not None:
            require_positive(tolerance=self.tolerance)

    @property
    def centre(self) -> float:
        """The loss that is sent as 0: the middle of its range."""
        return -0.5 * sum(self.reward_range)

    @property
    def loss_scale(self) -> float:
        """w: a loss is sent as w (loss - centre)."""
        low, high = self.reward_range
        return self.loss_share * self.gradient_bound / (0.5 * (high - low))

    @property
    def clipping_norm(self) -> float:
        """S: gradient and loss at their bounds together."""
        return self.gradient_bound * math.sqrt(1.0 + self.loss_share**2)

    def arms(self, space: Space) -> Arms:
        """The arms in a space.

        Raises:
            ConfigurationError: If the named parameter is not there or not categorical, or
                another one is not real.
        """
        names = list(space.parameters)
        if self.arm is not None and not isinstance(space.parameters.get(self.arm), Categorical):
            raise ConfigurationError(f"arm={self.arm!r} must name a categorical parameter; the space has {names}")
        index = None if self.arm is None else names.index(self.arm)
        free = [i for i in range(space.n_dims) if i != index]
        for i in free:
            if not isinstance(space.parameters[names[i]], Real):
                raise ConfigurationError(f"parameter {names[i]!r} has no gradient; name it as the arm or make it Real")
        if not free:
            raise ConfigurationError(f"the space has no real parameter beside the arm {self.arm!r}; add one")
        if index is None:
            coordinates = np.zeros(1)
        else:
            choices = space.parameters[names[index]].choices  # type: ignore[union-attr]  # categorical, see above
            coordinates = (np.arange(len(choices)) + 0.5) / len(choices)
        return Arms(index=index, free=np.array(free, dtype=np.int64), coordinates=coordinates, n_dims=space.n_dims)

    def server(self, setting: Setting) -> FederatedServer:
        """The public side."""
        return FederatedServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:  # noqa: ARG002 (the protocol's)
        """The private side; clients draw nothing at random, so ``seed`` is not used."""
        if self.share == "nothing":
            return LocalCohort(self, setting, clients=clients, evaluate=evaluate)
        return FederatedCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> FederatedFLCB:
        """Every client runs F-LCB on its own function; nothing is shared."""
        return dataclasses.replace(self, share="nothing")


class FederatedServer:
    """T rounds of (arm, point), then one round that announces the result and asks for nothing."""

    def __init__(self, algorithm: FederatedFLCB, setting: Setting) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._search = Search(algorithm, setting)
        self._round = 0
        self._announced = False
        n = setting.n_clients
        self._request = Request(
            dim=len(self._search.arms.free) + 1,
            clipping_norm=algorithm.clipping_norm,
            weights=np.full((1, n), 1.0 / n),
        )

    def plan(self) -> Iterator[Request]:
        """T equal requests; none if nothing is shared."""
        shares = self._algorithm.share == "gradients"
        return iter([self._request] * (self._setting.rounds if shares else 0))

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Rates that were seen to fail."""
        return tuple(self._search.bounds.violations)

    @property
    def pulls(self) -> IntArray:
        """Pulls per arm, ``(K,)``."""
        return self._search.bounds.pulls.copy()

    @property
    def chosen(self) -> int | None:
        """The arm with the smallest current value and width."""
        return self._search.bounds.best()

    @property
    def best(self) -> FloatArray:
        """The recommended point of the cube, ``(n_dims,)``."""
        return self._search.best

    def ask(self) -> Ask | None:
        """The arm with the smallest bound and its points; the result in the last round."""
        if self._announced:
            return None
        if self._algorithm.share == "nothing":
            return Ask(broadcast=Broadcast(round=self._round), request=None)
        search = self._search
        if self._round == self._setting.rounds or search.settled:
            arrays = {"best": search.best}
            return Ask(broadcast=Broadcast(round=self._round, arrays=arrays), request=None)
        arm = search.selected
        state = search.states[arm]
        arrays = {
            "arm": np.array([arm]),
            "query": search.arms.unit(arm, state.query),
            "point": search.arms.unit(arm, state.point),
            "best": search.best,
        }
        return Ask(broadcast=Broadcast(round=self._round, arrays=arrays), request=self._request)

    def tell(self, release: Release | None) -> None:
        """Absorb the answer; a round without request was local work or the announcement."""
        self._round += 1
        if release is None:
            self._announced = self._algorithm.share == "gradients" or self._round == self._setting.rounds
            return
        algorithm, values = self._algorithm, release.values[0]
        self._search.absorb(
            self._search.selected,
            values[:-1],
            algorithm.centre + float(values[-1]) / algorithm.loss_scale,
            noise=release.noise_stddev,
            loss_noise=release.noise_stddev / algorithm.loss_scale,
        )
