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
that no vector is clipped and that every client takes part; both are visible in an audit.

Where one record is the unit, an objective's value is a mean over a site's records. One of them moves it by the range's
width over their number, a central difference by twice that over its least width, ``difference``. Noise so falls with
records times ``difference``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.algorithms.functional.methods import Box, GradientNoise, Rates, State, StochasticAccelerated
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Arrays,
    Ask,
    Broadcast,
    ClientHistory,
    Cohort,
    Evaluate,
    FloatArray,
    IntArray,
    Records,
    Release,
    Request,
    Setting,
)
from privbo.protocol.settings import Count, Positive, Range, settings
from privbo.protocol.space import Categorical, Real, Space

_UNIT_ROUNDOFF = 2.0**-53


class Bounds:
    """Lower confidence bounds f(x) - g(k) of K arms (Algorithm 1); untried arms stand at minus infinity.

    Args:
        n_arms: K.
    """

    def __init__(self, n_arms: int) -> None:
        self.lower: FloatArray = np.full(n_arms, -np.inf)
        self.value: FloatArray = np.full(n_arms, np.nan)
        self.width: FloatArray = np.zeros(n_arms)
        self.rate: FloatArray = np.full(n_arms, np.inf)

    def select(self) -> int:
        """The arm with the smallest bound (the first of equals)."""
        return int(self.lower.argmin())

    def observe(self, arm: int, value: float, rate: float, width: float = 0.0) -> None:
        """Take a value after one more pull of an arm."""
        self.lower[arm], self.value[arm] = value - rate - width, value
        self.rate[arm], self.width[arm] = rate, width

    def best(self) -> int:
        """The arm whose current value, with its width added, is smallest; the first one before any is known.

        Never the best value so far: the smallest of many noisy values is mostly luck.
        """
        return int(np.where(np.isfinite(self.value), self.value + self.width, np.inf).argmin())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arms:
    """Which coordinate of the cube names the arm, and which are optimised.

    Attributes:
        index: The arm's coordinate, or None.
        free: The others.
        coordinates: Unit coordinate of every arm, ``(K,)``.
    """

    index: int | None
    free: IntArray
    coordinates: FloatArray

    def unit(self, arm: int, x: FloatArray) -> FloatArray:
        """The point of the cube, ``(n_dims,)``, for an arm and its free coordinates."""
        unit = np.empty(len(self.free) + (self.index is not None))
        unit[self.free] = x
        if self.index is not None:
            unit[self.index] = self.coordinates[arm]
        return unit


@settings(table="algorithm")
class FederatedFLCB:
    """F-LCB over the values of one parameter, private for every client or for every record.

    Attributes:
        arm: Name of the categorical parameter that names the function; None: one function.
        reward_range: Declared bounds of a score (larger is better); it is clipped to them.
        gradient_bound: Largest norm of a client's gradient in unit coordinates; longer ones
            are clipped.
        smoothness: L of the mean loss in unit coordinates.
        start: Where every arm starts, in every unit coordinate.
        difference: Half-width of the central differences. Where one record is the unit of privacy, noise falls with it:
            take .05 or more.
        delta_b: Failure probability of one rate (not of privacy); None is 1/(K T^2).
        rates: ``"certified"`` or ``"printed"`` (drops constants; a heuristic).
        tolerance: Stop when the selected arm's minimum is surely within it of the best.
        evaluations: Most evaluations of one client over the whole run; it takes so many rounds less. None: ``rounds``
            decides, with 2 n + 1 evaluations in each for n free parameters.
        share: ``"gradients"``, or ``"nothing"``: each client for itself.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> space = {"model": pb.Categorical(("svm", "forest")), "x": pb.Real(0, 1)}
        >>> problem = pb.Problem(space=space, objective=lambda client, p: 1 - p["x"], n_clients=20)
        >>> plan = pb.plan(problem, pb.FederatedFLCB(arm="model"), privacy=pb.Privacy(epsilon=2.0), rounds=6)
        >>> plan.releases
        6
    """

    answers_together: ClassVar[bool] = True
    is_certified: ClassVar[bool] = False  # its bounds assume that no vector is clipped; they do not fix its norm
    type: Literal["f-lcb"] = dataclasses.field(default="f-lcb", repr=False)
    arm: str | None = None
    reward_range: Range = (0.0, 1.0)
    gradient_bound: Positive = 1.0
    smoothness: Positive = 4.0
    start: Annotated[float, Field(ge=0, le=1)] = 0.5
    difference: Annotated[float, Field(gt=0, le=0.25)] = 1e-3
    delta_b: Annotated[float, Field(gt=0, lt=1)] | None = None
    rates: Rates = "certified"
    tolerance: Positive | None = None
    share: Literal["gradients", "nothing"] = "gradients"
    evaluations: Count | None = None

    @classmethod
    def paper(cls, **changes: Any) -> FederatedFLCB:  # noqa: ANN401  # the fields of this class
        """Give the paper's rates as printed, which drop constants; the arm it returns and where are ``Record.common``.

        Example:
            >>> import privbo as pb
            >>> pb.FederatedFLCB.paper(arm="model").rates
            'printed'
        """
        return dataclasses.replace(cls(rates="printed"), **changes)

    @property
    def centre(self) -> float:
        """The loss that is sent as 0: the middle of its range."""
        return -0.5 * sum(self.reward_range)

    @property
    def loss_scale(self) -> float:
        """w: a loss is sent as w (loss - centre), as long at its bound as a gradient."""
        low, high = self.reward_range
        return self.gradient_bound / (0.5 * (high - low))

    @property
    def clipping_norm(self) -> float:
        """S: gradient and loss at their bounds together."""
        return self.gradient_bound * math.sqrt(2.0)

    def request(self, setting: Setting) -> Request:
        """Give the request of every round: the average over all clients of gradient and loss.

        Raises:
            ConfigurationError: If one record is the unit of privacy and its scores have another range.
        """
        n, n_free = setting.n_clients, len(self.arms(setting.space).free)
        request = Request(dim=n_free + 1, clipping_norm=self.clipping_norm, weights=np.full((1, n), 1.0 / n))
        if setting.unit != "record" or setting.records is None:
            return request
        bound, training = self._record_bound(setting.records, n_free), setting.records.trained(2 * n_free + 1)
        person = setting.records.per_person
        return dataclasses.replace(request, unit="record", unit_bound=bound, group_size=person, training=training)

    def _record_bound(self, records: Records, n_free: int) -> float:
        """Bound on how far one record moves a client's vector.

        Proof: docs/proofs/one-record.md.
        """
        if self.reward_range != (records.low, records.high):
            raise ConfigurationError(
                f"reward_range={self.reward_range!r} must be score_range={(records.low, records.high)!r} where one "
                "record is the unit of privacy: a loss is a mean of scores"
            )
        largest = max(abs(records.low), abs(records.high))
        value = (records.high - records.low) / min(records.counts) + 32 * _UNIT_ROUNDOFF * largest
        width = self.difference - 8 * _UNIT_ROUNDOFF  # at the edge of the cube; it is twice as much inside
        slope = 2 * value / width if width > 0 else math.inf
        moved = min(math.hypot(math.sqrt(n_free) * slope, self.loss_scale * value), 2 * self.clipping_norm)
        return moved + 8 * (n_free + 8) * _UNIT_ROUNDOFF * self.clipping_norm

    def calls_per_client(self, setting: Setting) -> int:
        """Give the most calls of the objective by one client: those of every round, and of what is announced."""
        each, last = self._calls(setting)
        return each * self.within(setting).rounds + last

    def _calls(self, setting: Setting) -> tuple[int, int]:
        """Calls by one client in a round, and in the end."""
        return 2 * len(self.arms(setting.space).free) + 1, int(self.share == "gradients")

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts with as many rounds as ``evaluations`` hold.

        A round takes 2 n + 1 evaluations of a client, n being the free parameters; what is announced
        in the end takes one more where something is shared.

        Raises:
            ConfigurationError: If they do not hold one round.
        """
        if self.evaluations is None:
            return setting
        each, last = self._calls(setting)
        if self.evaluations < each + last:
            raise ConfigurationError(
                f"evaluations={self.evaluations} do not hold one round; give at least {each + last}"
            )
        return setting.at_most((self.evaluations - last) // each)

    def arms(self, space: Space) -> Arms:
        """The arms in a space.

        Raises:
            ConfigurationError: If the named parameter is not there or not categorical, or
                another one is not real.
        """
        names = list(space.parameters)
        if space.constraints:
            raise ConfigurationError(
                f"constraints {list(space.constraints)}: f-lcb's steps know none; use shared-prior or dp-fts-de"
            )
        if self.arm is not None and not isinstance(space.parameters.get(self.arm), Categorical):
            raise ConfigurationError(f"arm={self.arm!r} must name a categorical parameter; the space has {names}")
        index = None if self.arm is None else names.index(self.arm)
        free = [i for i in range(space.n_dims) if i != index]
        for i in free:
            parameter = space.parameters[names[i]]
            if not isinstance(parameter, Real) or parameter.step is not None or parameter.when:
                raise ConfigurationError(
                    f"parameter {names[i]!r} has no gradient everywhere; name it as the arm or make it Real, without "
                    "steps and conditions"
                )
        if not free:
            raise ConfigurationError(f"the space has no real parameter next to the arm {self.arm!r}; add one")
        if index is None:
            coordinates = np.zeros(1)
        else:
            choices = space.parameters[names[index]].choices  # type: ignore[union-attr]  # categorical, see above
            coordinates = (np.arange(len(choices)) + 0.5) / len(choices)
        return Arms(index=index, free=np.array(free, dtype=np.int64), coordinates=coordinates)

    @property
    def caveat(self) -> str | None:
        """The rates' caveat; the other assumptions of the bounds are named above, and an audit shows them."""
        if self.rates == "certified":
            return None
        return "rates='printed' drops constants of the bounds, so the best arm may be given up early: a heuristic."

    def server(self, setting: Setting) -> FederatedServer:
        """Make the public side."""
        return FederatedServer(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; clients draw nothing at random, so ``seed`` is not used."""
        return FederatedCohort(self, self.within(setting), clients=clients, evaluate=evaluate)

    def local(self) -> FederatedFLCB:
        """Give the control: every client runs F-LCB on its own function; nothing is shared."""
        return dataclasses.replace(self, share="nothing")


class Search:
    """F-LCB over gradients and losses that come from outside; a state machine over public data.

    A pull's loss is that of the point before the pull's step, rated with the steps made
    until then; before the first step the rate is gradient bound times diameter.
    """

    def __init__(self, algorithm: FederatedFLCB, setting: Setting) -> None:
        self.arms = algorithm.arms(setting.space)
        n_free, n_arms = len(self.arms.free), len(self.arms.coordinates)
        self._algorithm = algorithm
        self._box = Box(low=0.0, high=1.0, n_dims=n_free)
        self._delta = algorithm.delta_b or 1.0 / (n_arms * setting.rounds**2 + 1.0)
        self._quantile = math.sqrt(2.0 * math.log(2.0 * n_arms * setting.rounds / self._delta))
        start = self._optimiser(0.0).init(np.full(n_free, algorithm.start))
        self.states: list[State] = [start] * n_arms
        self.bounds = Bounds(n_arms)

    def _optimiser(self, noise_stddev: float) -> StochasticAccelerated:
        noise = GradientNoise(stddev=noise_stddev, n_dims=self._box.n_dims)
        smooth, rates = self._algorithm.smoothness, self._algorithm.rates
        # Between points at most h to either side a slope is off by L h / 2 at most (f is convex and L-smooth).
        bias = 0.5 * smooth * self._algorithm.difference * math.sqrt(self._box.n_dims)
        return StochasticAccelerated(smoothness=smooth, noise=noise, domain=self._box, rates=rates, bias=bias)

    @property
    def selected(self) -> int:
        """The arm to pull now."""
        return self.bounds.select()

    def absorb(self, arm: int, vector: FloatArray, *, noise: float) -> None:
        """Take one answer, with so much noise in every entry: bound the arm's minimum from the loss, then step."""
        state, method, scale = self.states[arm], self._optimiser(noise), self._algorithm.loss_scale
        if state.k:
            rate = method.rate(state.k, self._delta)
        else:
            rate = self._algorithm.gradient_bound * self._box.diameter
        loss = self._algorithm.centre + float(vector[-1]) / scale
        self.bounds.observe(arm, loss, rate, noise / scale * self._quantile)
        self.states[arm] = method.step(state, vector[:-1])

    @property
    def best(self) -> FloatArray:
        """The recommended point of the cube, ``(n_dims,)``: of the arm with the smallest current value."""
        arm = self.bounds.best()
        return self.arms.unit(arm, self.states[arm].point)

    @property
    def settled(self) -> bool:
        """Whether the selected arm is within the tolerance: g + 2 widths bounds its distance."""
        arm, tolerance = self.selected, self._algorithm.tolerance
        return tolerance is not None and bool(self.bounds.rate[arm] + 2.0 * self.bounds.width[arm] < tolerance)


class FederatedServer:
    """T rounds of (arm, point), then one round that announces the result and asks for nothing."""

    def __init__(self, algorithm: FederatedFLCB, setting: Setting) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._search = Search(algorithm, setting)
        self._round = 0
        self._announced = False
        self._request = algorithm.request(setting)

    def plan(self) -> Iterator[Request]:
        """T equal requests; none if nothing is shared."""
        shares = self._algorithm.share == "gradients"
        return iter([self._request] * (self._setting.rounds if shares else 0))

    def ask(self) -> Ask | None:
        """The arm with the smallest bound and its points; the result in the last round."""
        if self._announced:
            return None
        if self._algorithm.share == "nothing":
            return Ask(broadcast=Broadcast(round=self._round), request=None)
        search = self._search
        if self._round == self._setting.rounds or search.settled:
            arrays = {"best": search.best, CHOSEN: search.best}
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

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the one request that all broadcasts with an arm to pull have."""
        return self._request if "arm" in broadcast.arrays else None

    def tell(self, release: Release | None) -> None:
        """Absorb the answer; a round without request was local work or the announcement."""
        self._round += 1
        if release is None:
            self._announced = self._algorithm.share == "gradients" or self._round == self._setting.rounds
            return
        self._search.absorb(self._search.selected, release.values[0], noise=release.noise_stddev)


def answers(
    algorithm: FederatedFLCB,
    arms: Arms,
    evaluate: Evaluate,
    clients: IntArray,
    queries: FloatArray,
    points: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """One vector per client, and the objective at its point.

    Args:
        algorithm: Bounds and scales.
        arms: Which coordinates are free.
        evaluate: The clients' objectives.
        clients: Numbers, ``(n,)``.
        queries: Where the gradient is taken, ``(n, n_dims)``.
        points: Where the loss is taken, ``(n, n_dims)``.

    Returns:
        Clipped gradients of the loss and scaled losses, ``(n, n_free + 1)``; objectives at the points, ``(n,)``. A
        failed evaluation counts as the lowest score, so that no arm gains by failures and none is an absence.
    """
    gradients = np.empty((len(clients), len(arms.free)))
    queries = np.clip(queries, 0.0, 1.0)  # outside, ends of a difference would lie closer together
    for column, axis in enumerate(arms.free):
        ends = []
        for sign in (1.0, -1.0):
            moved = queries.copy()
            moved[:, axis] = np.clip(moved[:, axis] + sign * algorithm.difference, 0.0, 1.0)
            ends.append((moved[:, axis], _finite(evaluate(clients, moved), algorithm)))
        (right, above), (left, below) = ends
        gradients[:, column] = -(above - below) / (right - left)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients *= np.minimum(1.0, algorithm.gradient_bound / np.maximum(norms, 1e-300))
    objective = evaluate(clients, points)
    losses = -np.clip(_finite(objective, algorithm), *algorithm.reward_range)
    # A difference that overflows says nothing of the slope.
    vectors = [np.nan_to_num(gradients), algorithm.loss_scale * (losses - algorithm.centre)]
    return np.column_stack(vectors), objective


def _finite(values: FloatArray, algorithm: FederatedFLCB) -> FloatArray:
    return np.where(np.isfinite(values), values, algorithm.reward_range[0])


class FederatedCohort:
    """Clients that answer (arm, point) with gradient and loss; where nothing is shared, each runs its own search.

    Attributes:
        clients: Global numbers, ``(n,)``.
    """

    def __init__(self, algorithm: FederatedFLCB, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._algorithm, self._evaluate = algorithm, evaluate
        self.clients = np.asarray(clients, dtype=np.int64)
        self._arms = algorithm.arms(setting.space)
        shares = algorithm.share == "gradients"
        self._searches = None if shares else [Search(algorithm, setting) for _ in self.clients]
        n, n_free = len(self.clients), len(self._arms.free)
        # One evaluation per client and round: the objective at the point its loss was taken, and the answers.
        self._state: dict[str, npt.NDArray[Any]] = {
            "units": np.empty((n, 0, setting.space.n_dims)),
            "values": np.empty((n, 0)),
            "rounds": np.empty(0, dtype=np.int64),
            "recommended": np.tile(self._arms.unit(0, np.full(n_free, algorithm.start)), (n, 1)),
            "vectors": np.empty((0, n, n_free + 1)),
        }

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Gradient and loss at the broadcast point; the announcement is evaluated, not answered."""
        if not np.any(self._state["rounds"] == broadcast.round):
            self._play(broadcast)
        if self._searches is not None or "query" not in broadcast.arrays:
            return np.zeros((len(self.clients), 0))
        return np.asarray(self._state["vectors"][self._state["rounds"] == broadcast.round][0])

    def _play(self, broadcast: Broadcast) -> None:
        """Evaluate what is asked for, or what the clients' own searches ask for."""
        arrays = {name: np.asarray(array, dtype=np.float64) for name, array in broadcast.arrays.items()}
        n, state = len(self.clients), self._state
        if self._searches is not None:
            asked = [(search.selected, search.states[search.selected]) for search in self._searches]
            queries = np.array([self._arms.unit(arm, each.query) for arm, each in asked])
            points = np.array([self._arms.unit(arm, each.point) for arm, each in asked])
        else:
            state["recommended"][:] = arrays["best"]
            points = np.tile(arrays["point"] if "query" in arrays else arrays["best"], (n, 1))
            queries = np.tile(arrays.get("query", points[0]), (n, 1))
        if self._searches is None and "query" not in arrays:
            vectors, values = np.full((n, len(self._arms.free) + 1), np.nan), self._evaluate(self.clients, points)
        else:
            vectors, values = answers(self._algorithm, self._arms, self._evaluate, self.clients, queries, points)
        state["units"] = np.concatenate([state["units"], points[:, None]], axis=1)
        state["values"] = np.column_stack([state["values"], values])
        state["rounds"] = np.append(state["rounds"], broadcast.round)
        state["vectors"] = np.concatenate([state["vectors"], vectors[None]])
        self._learn(vectors)

    def _learn(self, vectors: FloatArray) -> None:
        """Tell the clients' own searches what their clients measured."""
        for i, (search, vector) in enumerate(zip(self._searches or (), vectors, strict=False)):
            search.absorb(search.selected, vector, noise=0.0)
            self._state["recommended"][i] = search.best

    def snapshot(self) -> Arrays:
        """Evaluations and answers so far; own searches follow from them."""
        return dict(self._state)

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot`` and replay its answers."""
        self._state = {name: np.array(snapshot[name]) for name in self._state}
        for vectors in self._state["vectors"]:
            self._learn(vectors)

    def history(self) -> ClientHistory:
        """One value per round and client, at the point whose loss was asked; its gradient takes two more calls an axis.

        The announcement, which takes none, is the round without vectors.
        """
        names = ("units", "values", "rounds", "recommended")
        calls = np.where(np.isnan(self._state["vectors"]).all(axis=(1, 2)), 1, 1 + 2 * len(self._arms.free))
        return ClientHistory(
            **{name: self._state[name] for name in names}, calls=np.tile(calls, (len(self.clients), 1))
        )
