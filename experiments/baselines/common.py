"""Searches for one setting that all clients use: the server names common points, clients score them or vote.

``private_search``, ``dp_hype``, ``central_model`` and ``best_arm`` are such searches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.protocol.common import CHOSEN, ballot_request, ballots, spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Ask,
    Broadcast,
    ClientHistory,
    Evaluate,
    FloatArray,
    IntArray,
    Release,
    Request,
    Setting,
    UnitName,
)
from privbo.protocol.settings import Count, Range, settings
from privbo.protocol.space import different

_UNIT_ROUNDOFF = 2.0**-53
_STREAM = 0xC0  # of public randomness, apart from that of other families
_SPARE = 4  # points per point that is wanted: rounding to values makes some of them equal
_DRAWS = 200  # random points per point that is wanted: at least a hundredth of them keep the constraints

Ballot: TypeAlias = Literal["single", "graded"]


# ---- what clients are asked, and how they answer


@dataclass(frozen=True, kw_only=True)
class Question:
    """Points that clients evaluate in a round.

    Attributes:
        points: ``(k, n_dims)``.
        pulls: Evaluations of each by every client.
    """

    points: FloatArray
    pulls: int = 1


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that was said of points so far.

    Attributes:
        points: ``(m, n_dims)``.
        means: What the release said of each, ``(m,)``; larger is better.
        stddev: Standard deviation of the noise in each, ``(m,)``.
        pulls: Evaluations of each by one client for that release, ``(m,)``.
        turns: Release that said it, from 0, ``(m,)``.
    """

    points: FloatArray
    means: FloatArray
    stddev: FloatArray
    pulls: IntArray
    turns: IntArray

    @staticmethod
    def nothing(n_dims: int) -> Seen:
        """Give the start."""
        none = np.empty(0, dtype=np.int64)
        return Seen(points=np.empty((0, n_dims)), means=np.empty(0), stddev=np.empty(0), pulls=none, turns=none)

    def with_more(self, asked: Question, means: FloatArray, stddev: float) -> Seen:
        """Give it with what one more release said."""
        k, turn = len(asked.points), int(self.turns[-1]) + 1 if len(self.turns) else 0
        return Seen(
            points=np.concatenate([self.points, asked.points]),
            means=np.concatenate([self.means, means]),
            stddev=np.concatenate([self.stddev, np.full(k, stddev)]),
            pulls=np.concatenate([self.pulls, np.full(k, asked.pulls)]),
            turns=np.concatenate([self.turns, np.full(k, turn)]),
        )


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores clipped to their declared range and centred in it: of norm at most half its width per root of a point.

    Attributes:
        low, high: The range.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Score that is sent as 0."""
        return 0.5 * (self.low + self.high)

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:
        """PRIVATE: mean centred scores ``(n, k)``; a point that failed has the lowest one, where another worked.

        Where one reward is the unit of privacy, an evaluation that failed counts as 0, so that no reward moves
        another entry than its own, nor its own by more than one evaluation's part.
        """
        known = np.isfinite(values)
        inside = np.where(known, np.clip(np.where(known, values, self.low), self.low, self.high) - self.middle, 0.0)
        if unit == "reward":
            return np.asarray(inside.mean(axis=1))
        worked = known.sum(axis=1)
        means = np.where(worked > 0, inside.sum(axis=1) / np.maximum(worked, 1), self.low - self.middle)
        return np.where(worked.any(axis=1, keepdims=True), means, np.nan)

    def request(self, count: int, total: int, pulls: int, setting: Setting) -> Request:
        """Ask for the mean; every point of the run has the same noise, however many its round has."""
        half, n = 0.5 * (self.high - self.low), setting.n_clients
        by_client = setting.unit != "reward"
        rounding = 4 * (pulls + 8) * _UNIT_ROUNDOFF * max(abs(self.low), abs(self.high))
        return Request(
            dim=count,
            clipping_norm=half * math.sqrt(count),
            weights=np.full((1, n), 1.0 / n),
            unit="client" if by_client else "reward",
            unit_bound=None if by_client else 2.0 * half / pulls + rounding,
            noise_scale=math.sqrt(total / count) if by_client else 1.0,
        )


@dataclass(frozen=True, kw_only=True)
class Votes:
    """One ballot of norm at most 1 over all points.

    Attributes:
        ballot: ``"single"`` is 1 at the best point; ``"graded"`` has a share for every good one.
    """

    ballot: Ballot

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:  # noqa: ARG002 (the form's)
        """PRIVATE: ballots ``(n, k)`` on the first evaluation of every point; NaN where nothing worked."""
        values = values[:, 0]
        if self.ballot == "graded":
            return ballots(values)
        known = np.isfinite(values)
        best = np.where(known, values, -np.inf).argmax(axis=1)
        return np.where(known.any(axis=1, keepdims=True), np.eye(values.shape[1])[best], np.nan)

    def request(self, count: int, total: int, pulls: int, setting: Setting) -> Request:  # noqa: ARG002 (the form's)
        """Ask for the mean ballot; one reward moves a single vote at most to another point."""
        asked = ballot_request(count, setting.n_clients, 1.0)
        if setting.unit != "reward":
            return asked
        return dataclasses.replace(
            asked, unit=setting.unit, unit_bound=2.0 if self.ballot == "graded" else math.sqrt(2.0)
        )


Propose: TypeAlias = Callable[[Seen, int], Question | None]
Choose: TypeAlias = Callable[[Seen], int]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for a common setting; everything in it is public and deterministic.

    Attributes:
        counts: Number of points in every round.
        form: Of the answers.
        propose: Names so many next points; None where the search is over.
        choose: Index of the point that wins.
        pulls: Fewest evaluations of a point by one client, in every round; None is one.
    """

    counts: tuple[int, ...]
    form: Scores | Votes
    propose: Propose
    choose: Choose
    pulls: tuple[int, ...] | None = None

    def planned(self, round_: int, setting: Setting) -> Request:
        """Give the request of a round as it is planned."""
        return self.form.request(
            self.counts[round_], sum(self.counts), 1 if self.pulls is None else self.pulls[round_], setting
        )

    def request(self, asked: Question, setting: Setting) -> Request:
        """Give the request that goes with a question."""
        return self.form.request(len(asked.points), sum(self.counts), asked.pulls, setting)


def listed(points: FloatArray) -> Propose:
    """Propose points of a list that was fixed before the run, in its order."""
    return lambda seen, count: Question(points=points[len(seen.points) : len(seen.points) + count])


def largest(seen: Seen) -> int:
    """Choose the point of which the largest number was released."""
    return int(seen.means.argmax())


# ---- settings, and the points that a search may name


@settings(table="algorithm")
class CommonSearch:
    """A search's declared scores and budget, and whether anything is shared.

    Attributes:
        reward_range: Declared bounds of a score; it is clipped to them.
        evaluations: Most evaluations of one client over the whole run; None: as many as the rounds take.
        alone: Nothing is shared: every client makes the search on its own values.
    """

    answers_together: ClassVar[bool] = True  # its cohort raises for no client's data
    reward_range: Range = (0.0, 1.0)
    evaluations: Count | None = None
    alone: bool = False

    @property
    def caveat(self) -> str | None:
        """None: every form of it does what its settings say."""
        return None

    @property
    def is_certified(self) -> bool:
        """False: no statement about the optimum rests on the clipping norm."""
        return False

    def search(self, setting: Setting) -> Search:
        """Give the search of a run."""
        raise NotImplementedError

    def local(self) -> Self:
        """Give the same clients with nothing shared."""
        return dataclasses.replace(self, alone=True)

    def server(self, setting: Setting) -> SearchServer:
        """Make the public side."""
        return SearchServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> SearchClients:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return SearchClients(self, setting, clients=clients, evaluate=evaluate)

    def schedule(self, first: int, each: int, setting: Setting, available: float) -> tuple[int, ...]:
        """Give the number of new points in every round: as ``evaluations`` hold and as there are points."""
        wanted = first + each * (setting.rounds - 1)
        left = int(min(wanted, available, wanted if self.evaluations is None else self.evaluations))
        counts = list[int]()
        while left > 0:
            counts.append(min(left, each if counts else first))
            left -= counts[-1]
        return tuple(counts)


def stream(setting: Setting, *place: int) -> np.random.Generator:
    """Give public randomness of a run; ``place`` tells one use from another."""
    return np.random.default_rng([_STREAM, setting.public_seed, *place])


def net(setting: Setting, count: int, *place: int) -> FloatArray:
    """Give different points of a shifted Sobol net, ``(k, n_dims)`` with k <= ``count``.

    Points of a small space come in random order, so that the first of them are no corner of it.
    """
    generator, enough = stream(setting, *place), _SPARE * count
    points = spread(setting.space, enough, generator.random(setting.space.n_dims))
    small = setting.space.grid(enough) is not None
    return np.asarray(points[generator.permutation(len(points))] if small else points)[:count]


def random_points(setting: Setting, count: int) -> FloatArray:
    """Give different random points, ``(k, n_dims)`` with k <= ``count``."""
    space = setting.space
    drawn = space.snap(stream(setting).random((_DRAWS * count + 1000, space.n_dims)))
    return different(drawn[space.allows(drawn)])[:count]


# ---- the two sides


class SearchServer:
    """Rounds of common points, then one that announces the winner and asks for nothing."""

    def __init__(self, algorithm: CommonSearch, setting: Setting) -> None:
        self._search, self._setting, self._alone = algorithm.search(setting), setting, algorithm.alone
        self._seen = Seen.nothing(setting.space.n_dims)
        self._announced = False
        self._round = 0
        self._asked = self._next()

    def plan(self) -> Iterator[Request]:
        """Every request of the run, in order; a search that is over earlier leaves some out."""
        rounds = range(0 if self._alone else len(self._search.counts))
        return (self._search.planned(round_, self._setting) for round_ in rounds)

    def ask(self) -> Ask | None:
        """The points of the current round; the winner in the last one."""
        if self._alone:
            is_over = self._round == len(self._search.counts)
            return None if is_over else Ask(broadcast=Broadcast(round=self._round), request=None)
        if self._asked is not None:
            arrays = {"points": self._asked.points, "pulls": np.array(self._asked.pulls)}
            broadcast = Broadcast(round=self._round, arrays=arrays)
            return Ask(broadcast=broadcast, request=self.request_for(broadcast))
        if self._announced:
            return None
        return Ask(broadcast=Broadcast(round=self._round, arrays={CHOSEN: self.chosen}), request=None)

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the points that a broadcast names; None where it names none.

        Raises:
            ConfigurationError: If it names more points than its round has.
        """
        if "points" not in broadcast.arrays:
            return None
        points, round_ = np.asarray(broadcast.arrays["points"]), broadcast.round
        most = self._search.counts[round_] if 0 <= round_ < len(self._search.counts) else 0
        if not 1 <= len(points) <= most:
            raise ConfigurationError(f"round {round_} names {len(points)} points, this run has at most {most} there")
        asked = Question(points=points, pulls=int(broadcast.arrays["pulls"]))
        return self._search.request(asked, self._setting)

    def tell(self, release: Release | None) -> None:
        """Take in what was released of the round's points, and name the next ones.

        Raises:
            ConfigurationError: If there is a release where none was asked for, or none where one was.
        """
        if (release is not None) != (self._asked is not None):
            wanted = "has no" if self._asked is None else "ends with"
            raise ConfigurationError(f"round {self._round} {wanted} release, told {release!r}")
        self._round += 1
        if release is None or self._asked is None:
            self._announced = not self._alone
            return
        self._seen = self._seen.with_more(self._asked, release.values[0], release.noise_stddev)
        self._asked = self._next()

    @property
    def chosen(self) -> FloatArray:
        """The point that wins by all that was released so far, ``(n_dims,)``."""
        return np.asarray(self._seen.points[self._search.choose(self._seen)])

    def _next(self) -> Question | None:
        counts = self._search.counts
        if self._alone or self._round >= len(counts):
            return None
        return self._search.propose(self._seen, counts[self._round])


class SearchClients:
    """Clients of a search: they evaluate common points, or search alone where nothing is shared."""

    def __init__(self, algorithm: CommonSearch, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._search, self._setting = algorithm.search(setting), setting
        self._alone, self._range = algorithm.alone, algorithm.reward_range
        self._clients, self._evaluate = np.asarray(clients, dtype=np.int64), evaluate
        n, d = len(self._clients), setting.space.n_dims
        self._state: dict[str, npt.NDArray[np.generic]] = {
            "units": np.empty((n, 0, d)),
            "values": np.empty((n, 0)),
            "rounds": np.empty(0, dtype=np.int64),
            "pulls": np.empty(0, dtype=np.int64),  # of the points of each evaluation's round
            "chosen": np.empty((0, d)),
        }

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients."""
        return self._clients

    @property
    def _units(self) -> FloatArray:
        return np.asarray(self._state["units"], dtype=np.float64)

    @property
    def _values(self) -> FloatArray:
        return np.asarray(self._state["values"], dtype=np.float64)

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the points of a round, unless it was answered before, and say how good they are.

        Returns:
            One vector per client, ``(n, k)``; ``(n, 0)`` where nothing is asked for.
        """
        n = len(self._clients)
        if CHOSEN in broadcast.arrays:
            self._state["chosen"] = np.asarray(broadcast.arrays[CHOSEN], dtype=np.float64)[None]
            return np.empty((n, 0))
        if broadcast.round not in self._state["rounds"]:
            points, pulls = self._own(broadcast.round) if self._alone else _told(broadcast, n)
            self._query(np.tile(points, (1, pulls, 1)), pulls, broadcast.round)
        return (
            np.empty((n, 0))
            if self._alone
            else self._search.form.vectors(self._of(broadcast.round), self._setting.unit)
        )

    def _of(self, round_: int) -> FloatArray:
        """Values of a round, ``(n, pulls, k)``."""
        here = self._state["rounds"] == round_
        pulls = int(self._state["pulls"][here][0])
        return self._values[:, here].reshape(len(self._clients), pulls, -1)

    def _query(self, points: FloatArray, pulls: int, round_: int) -> None:
        """Evaluate points ``(n, k, n_dims)``, of which every ``k / pulls`` are the same."""
        n, k, d = points.shape
        found = np.asarray(self._evaluate(np.repeat(self._clients, k), points.reshape(-1, d)), dtype=np.float64)
        values = np.where(np.isfinite(found), found, np.nan).reshape(n, k)
        low, high = self._range
        for client in self._clients[((values < low) | (values > high)).any(axis=1)]:
            self._evaluate.note(
                int(client),
                f"a score outside reward_range=({low:g}, {high:g}) was clipped; normalise the objective",
            )
        state = self._state
        state["units"] = np.concatenate([self._units, points], axis=1)
        state["values"] = np.concatenate([self._values, values], axis=1)
        state["rounds"] = np.append(state["rounds"], np.full(k, round_))
        state["pulls"] = np.append(state["pulls"], np.full(k, pulls))

    def _own(self, round_: int) -> tuple[FloatArray, int]:
        """The next points of clients that search alone, ``(n, k, n_dims)``, and the pulls of each."""
        seen = [Seen.nothing(self._setting.space.n_dims) for _ in self._clients]
        for earlier in np.unique(self._state["rounds"]):
            values, points = self._of(int(earlier)), self._units[:, self._state["rounds"] == earlier]
            known = np.where(np.isfinite(values), values, self._range[0])
            asked = [Question(points=p[: values.shape[2]], pulls=values.shape[1]) for p in points]
            seen = [s.with_more(q, v, 0.0) for s, q, v in zip(seen, asked, known.mean(axis=1), strict=True)]
        found = [self._search.propose(one, self._search.counts[round_]) for one in seen]
        told = [question for question in found if question is not None]
        return np.array([question.points for question in told]), told[0].pulls

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything (private)."""
        return dict(self._state)

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        self._state = {name: np.array(array) for name, array in snapshot.items()}

    def history(self) -> ClientHistory:
        """Every evaluation; the winner is recommended once it is announced, before and alone the client's own best."""
        values, units = self._values, self._units
        n, d = len(self._clients), self._setting.space.n_dims
        if len(self._state["chosen"]):
            recommended = np.tile(np.asarray(self._state["chosen"], dtype=np.float64), (n, 1))
        elif values.shape[1]:
            best = np.where(np.isfinite(values), values, -np.inf).argmax(axis=1)
            recommended = units[np.arange(n), best]
        else:
            recommended = np.full((n, d), np.nan)
        rounds = np.asarray(self._state["rounds"], dtype=np.int64)
        return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended)


def _told(broadcast: Broadcast, n: int) -> tuple[FloatArray, int]:
    points = np.asarray(broadcast.arrays["points"], dtype=np.float64)
    return np.tile(points, (n, 1, 1)), int(broadcast.arrays["pulls"])
