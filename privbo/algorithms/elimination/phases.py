"""A phase and the message that announces it; public.

A phase is a set of nodes of one depth and the number of pulls each gets from every
client. Phases that end in a release and the silent tail of a run look the same to a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice, takewhile
from typing import Generic, TypeVar

import numpy as np

from privbo.algorithms.elimination.pulls import TreeCohort, judge, recommend
from privbo.algorithms.elimination.settings import SharingSettings, TreeSettings, noise_half_width
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Arrays,
    Ask,
    BoolArray,
    Broadcast,
    ClientHistory,
    Evaluate,
    FloatArray,
    IntArray,
    Release,
    Request,
    Setting,
)
from privbo.protocol.space import different

A = TypeVar("A", bound=SharingSettings)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Nodes of one depth and the pulls each gets from every client; public.

    Attributes:
        depth: Depth of all nodes.
        nodes: Indices, ``(K,)``.
        pulls: Pulls of every node by every client, ``(K,)``.
        best: Depth and index of the node that is best so far, or None at the start.
        sends: Whether clients answer with their mean rewards; not in the silent end of a run.

    Raises:
        ConfigurationError: If nodes are no list, or one of them has no number of pulls.
    """

    depth: int
    nodes: IntArray
    pulls: IntArray
    best: tuple[int, int] | None
    sends: bool = True

    def __post_init__(self) -> None:
        shapes = self.nodes.shape, self.pulls.shape
        if self.nodes.ndim != 1 or shapes[0] != shapes[1] or (self.pulls < 1).any():
            raise ConfigurationError(
                f"nodes of shape {shapes[0]} with pulls of shape {shapes[1]}, of which the least is "
                f"{self.pulls.min(initial=1)}; name nodes in one list, (K,), each with 1 or more pulls"
            )

    def broadcast(self, round_: int) -> Broadcast:
        """The message: 2 K + 4 integers and whether clients answer."""
        best = (-1, -1) if self.best is None else self.best
        arrays = {
            "depth": np.array(self.depth),
            "nodes": self.nodes,
            "pulls": self.pulls,
            "best": np.array(best, dtype=np.int64),
            "sends": np.array(self.sends),
        }
        return Broadcast(round=round_, arrays=arrays)

    @staticmethod
    def of(broadcast: Broadcast) -> Phase:
        """The phase a message announces.

        Raises:
            ConfigurationError: If the message announces none.
        """
        arrays = broadcast.arrays
        if not {"depth", "nodes", "pulls", "best", "sends"} <= arrays.keys():
            raise ConfigurationError(f"the broadcast holds {sorted(arrays)}; it announces no phase")
        best = arrays["best"]
        return Phase(
            depth=int(arrays["depth"]),
            nodes=np.asarray(arrays["nodes"], dtype=np.int64),
            pulls=np.asarray(arrays["pulls"], dtype=np.int64),
            best=None if best[0] < 0 else (int(best[0]), int(best[1])),
            sends=bool(arrays["sends"]),
        )

    @staticmethod
    def shared(broadcast: Broadcast) -> Phase:
        """The answered phase of a message that has one number of pulls for all nodes.

        Raises:
            ConfigurationError: If it has another form.
        """
        depth, nodes, pulls = (np.asarray(broadcast.arrays[name]) for name in ("depth", "nodes", "pulls"))
        if pulls.ndim or pulls.dtype.kind not in "iu":
            raise ConfigurationError(f"pulls of shape {pulls.shape} and type {pulls.dtype}; give one integer")
        each = np.full(nodes.shape, int(pulls), dtype=np.int64)
        return Phase(depth=int(depth), nodes=nodes.astype(np.int64), pulls=each, best=None)

    @property
    def equal_pulls(self) -> int:
        """Pulls that every node of an answered phase gets from every client.

        Raises:
            ConfigurationError: If they differ: then how far one reward moves an answer depends on the node.
        """
        distinct = {int(pulls) for pulls in self.pulls}
        if len(distinct) != 1:
            raise ConfigurationError(
                f"{len(self.nodes)} nodes with pulls {sorted(distinct)[:5]}; an answered phase has one number for all"
            )
        return distinct.pop()

    def require_within(self, left: int) -> None:
        """Refuse more pulls than public numbers leave; a client does not trust the server with that bound.

        Raises:
            ConfigurationError: Naming both numbers.
        """
        if (asked := sum(self.pulls.tolist())) > left:
            raise ConfigurationError(
                f"a phase of {asked} pulls, where {left} of horizon and evaluations are left to share; nothing was "
                "pulled: give the server the run's own settings"
            )


class PhaseServer(Generic[A]):
    """The public side of an elimination whose clients all pull the active nodes of one depth, phase after phase.

    An algorithm says how often nodes are pulled, whether they are split before that, which of them stay, and what ends
    the run.

    Args:
        algorithm: The tree, and how mean rewards leave a client.
        setting: Public facts of the run.
        cap: Most active nodes after the first phase, or None.
        releases: Most releases, or None.

    Attributes:
        phase: The phase that is played now; None when the run is over.
        best: Depth and index of the best node of the last completed phase.

    Raises:
        ConfigurationError: If the first phase does not fit.
    """

    # The silent phase at the end, given the depth and survivors of the last phase.
    _end: Callable[[int, IntArray], Phase | None]

    def __init__(self, algorithm: A, setting: Setting, *, cap: int | None = None, releases: int | None = None) -> None:
        self._algorithm, self._setting, self._sharing = algorithm, setting, algorithm.sharing
        self._confidence = algorithm.confidence(setting.n_clients)
        self._partition = algorithm.partition(setting)
        self._spent, self._round = 0, 0
        root = np.zeros(1, dtype=np.int64)
        self._active = 0, root
        self.best: tuple[int, int] | None = None
        self.phase: Phase | None = self._next(-1, root)
        if self.phase is None:
            raise ConfigurationError(
                f"{algorithm.budget} pulls of a client do not hold one phase for {setting.n_clients} clients; raise "
                "horizon, evaluations or nu1, or lower c"
            )
        self._first = first = self.phase
        self._cap = cap
        self._most_nodes = algorithm.budget if cap is None else min(algorithm.budget, max(cap, len(first.nodes)))
        most = setting.rounds if releases is None else min(setting.rounds, releases)
        # Leading phases, at least one, that fit the budget together; lengths of very deep ones exceed floating point.
        totals = accumulate(islice(self._lengths(), most))
        self._n_releases = max(1, sum(1 for _ in takewhile(lambda total: total <= algorithm.budget, totals)))

    def plan(self) -> Iterator[Request]:
        """P requests; those after the first for as many nodes as the phase could hold."""
        for n_nodes, pulls, most in self._planned:
            yield self._sharing.request(n_nodes, pulls, self._setting, most=most)

    @cached_property
    def _planned(self) -> list[tuple[int, int, int]]:
        """Of every release: most nodes, pulls of each, and most pulls of a client together.

        A phase that fits leaves the least pulls of those before it untouched; these follow from its number alone.
        """
        n_nodes, found = len(self._first.nodes), []
        before = accumulate(self._lengths(), initial=0)
        for depth in range(self._first.depth, self._first.depth + self._n_releases):
            pulls = self._pulls(depth, n_nodes)
            found.append((n_nodes, pulls, min(n_nodes * pulls, self._algorithm.budget - next(before))))
            n_nodes = min(self._algorithm.n_children * n_nodes, self._most_nodes)
        return found

    def _request(self, round_: int, n_nodes: int, pulls: int) -> Request:
        """What a round asks for; how many models it may train depends on its number, not on what is broadcast."""
        most = self._planned[round_][-1] if 0 <= round_ < self._n_releases else 0
        if n_nodes * pulls > most and self._setting.trains:
            raise ConfigurationError(
                f"round {round_}: {n_nodes} nodes with {pulls} pulls train more than the {most} models planned; none is"
            )
        return self._sharing.request(n_nodes, pulls, self._setting, most=most)

    def ask(self) -> Ask | None:
        """The current phase; without a request at the silent end."""
        if self.phase is None:
            return None
        broadcast = self.phase.broadcast(self._round)
        if not self.phase.sends and self.best is not None:  # the last round has the papers' answer
            depth, node = np.array([self.best[0]]), np.array([self.best[1]])
            chosen = self._partition.points(self._setting.space, depth, node)[0]
            broadcast = Broadcast(round=self._round, arrays={**broadcast.arrays, CHOSEN: chosen})
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the phase that a broadcast announces; None at the silent end."""
        phase = Phase.of(broadcast)
        return self._request(broadcast.round, len(phase.nodes), phase.equal_pulls) if phase.sends else None

    def tell(self, release: Release | None) -> None:
        """Eliminate, split, and go on to the next phase or the end."""
        phase = self.phase
        if phase is None:
            return
        self._round += 1
        if release is None:
            self.phase = None
            return
        self._spent += self._length(phase.depth, len(phase.nodes))
        means = release.values[0]
        top = int(np.argmax(means))
        self.best = phase.depth, int(phase.nodes[top])
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases, self._setting.n_clients)
        stays = self._stays(phase, means, self._algorithm.widen * noise)
        stays[top] = True
        order = np.argsort(-means, kind="stable")
        self._active = phase.depth, phase.nodes[order[stays[order]]]
        survivors = phase.nodes[stays]
        following = None if self._round == self._n_releases else self._next(phase.depth, survivors)
        self.phase = self._end(phase.depth, survivors) if following is None else following

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: centres of the nodes that are still active, best means first."""
        depth, nodes = self._active
        return different(self._partition.points(self._setting.space, np.full(len(nodes), depth), nodes))[:count]

    def _next(self, depth: int, survivors: IntArray) -> Phase | None:
        """The phase of the survivors' children (the root at depth -1); None if it does not fit."""
        if depth == self._partition.max_depth:
            return None
        depth, nodes = depth + 1, survivors if depth < 0 else self._partition.children(survivors)
        while depth < self._partition.max_depth and self._splits(depth, len(nodes)):
            depth, nodes = depth + 1, self._partition.children(nodes)
        if self._length(depth, len(nodes)) > self._algorithm.budget - self._spent:
            return None
        pulls = np.full(len(nodes), self._pulls(depth, len(nodes)))
        return Phase(depth=depth, nodes=nodes, pulls=pulls, best=self.best)

    def _lengths(self) -> Iterable[int]:
        """Least pulls of one client in every phase: after the first at least k nodes are left."""
        first, k = self._first, self._algorithm.n_children
        deeper = range(first.depth + 1, self._partition.max_depth + 1)
        return chain([self._length(first.depth, len(first.nodes))], (self._length(depth, k) for depth in deeper))

    def _length(self, depth: int, n_nodes: int) -> int:
        """Most pulls of one client in a phase of so many nodes."""
        return n_nodes * self._pulls(depth, n_nodes)

    def _pulls(self, depth: int, n_nodes: int) -> int:  # noqa: ARG002  # for algorithms whose pulls depend on it
        """Pulls of each of so many nodes by every client."""
        return self._confidence.pulls_per_client(depth)

    def _splits(self, depth: int, n_nodes: int) -> bool:
        """Whether nodes are split once more before they are pulled: the root, of which alone nothing can come."""
        k, algorithm = self._algorithm.n_children, self._algorithm
        fits = self._length(depth + 1, k * n_nodes) <= algorithm.budget
        return depth == 0 and algorithm.release_when == "useful" and fits

    def _stays(self, phase: Phase, means: FloatArray, noise: float) -> BoolArray:
        """``mu + b + w beta + nu1 rho^h >= mu_best - b - w beta``, cut to the cap; ``noise`` is w beta."""
        radius = self._radius(phase) + noise
        stays = np.asarray(means + radius + self._deficit(phase.depth) >= means.max() - radius)
        if self._cap is not None:
            stays[np.argsort(-means, kind="stable")[self._cap // self._algorithm.n_children :]] = False
        return stays

    def _radius(self, phase: Phase) -> float:
        """Half-width b after the pulls of all clients."""
        return float(self._confidence.radius(phase.equal_pulls * self._setting.n_clients))

    def _deficit(self, depth: int) -> float:
        """Deficit of a node's mean that may hide the optimum: the variation inside its cell."""
        return self._confidence.variation(depth)


_STATE = ("depths", "nodes", "pulls", "rounds", "means", "worked", "best")


class PhaseCohort(TreeCohort):
    """Clients that all pull what the server announces and answer with centred mean rewards."""

    def __init__(self, algorithm: TreeSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        super().__init__(algorithm, setting, clients=clients, evaluate=evaluate)
        empty = np.zeros(0, dtype=np.int64)
        self._depths, self._nodes, self._pulls, self._rounds = empty, empty, empty, empty
        self._means = np.zeros((len(self.clients), 0))
        self._worked = np.zeros((len(self.clients), 0), dtype=np.int64)
        self._best = np.array([0, 0], dtype=np.int64)

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Pull, and answer with centred means ``(n, K)``."""
        if not np.any(self._rounds == broadcast.round):
            self._play(Phase.of(broadcast), broadcast.round)
        here = self._rounds == broadcast.round
        means = self._means[:, here]
        if not means.size:
            return means
        return self._answer(means, self._worked[:, here] / self._pulls[here])

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        n, k = self._means.shape
        points = self._partition.points(self._space, self._depths, self._nodes)
        owners, worked, means = np.repeat(np.arange(n), k), self._worked.reshape(-1), self._means.reshape(-1)
        return judge(owners, np.tile(points, (n, 1)), worked, means, units, n)

    def _play(self, phase: Phase, round_: int) -> None:
        phase.require_within(self._confidence.horizon - int(self._pulls.sum()))
        self._best = np.array(phase.best if phase.best is not None else (0, 0), dtype=np.int64)
        n, k = len(self.clients), len(phase.nodes)
        if k == 0:
            return
        points = self._partition.points(self._space, np.full(k, phase.depth), phase.nodes)
        units = np.tile(points, (n, 1))
        means, worked = self._pull_points(np.repeat(self.clients, k), units, np.tile(phase.pulls, n))
        self._means = np.concatenate([self._means, means.reshape(n, k)], axis=1)
        self._worked = np.concatenate([self._worked, worked.reshape(n, k)], axis=1)
        self._depths = np.append(self._depths, np.full(k, phase.depth))
        self._nodes = np.append(self._nodes, phase.nodes)
        self._pulls = np.append(self._pulls, phase.pulls)
        self._rounds = np.append(self._rounds, np.full(k, round_))

    def snapshot(self) -> Arrays:
        """Everything (private)."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``."""
        for name in _STATE:
            setattr(self, f"_{name}", np.array(snapshot[name]))

    def history(self) -> ClientHistory:
        """One evaluation per node and phase: its value is the mean of the client's pulls (private).

        A client would use the node that is best for their average unless it has seen a better one, by the lower
        confidence bounds of its own pulls.
        """
        (n, k), d = self._means.shape, self._space.n_dims
        points = self._partition.points(self._space, self._depths, self._nodes)
        common = self._partition.points(self._space, self._best[:1], self._best[1:])
        return ClientHistory(
            units=np.broadcast_to(points, (n, k, d)),
            values=self._means.copy(),
            rounds=self._rounds.copy(),
            calls=np.tile(self._pulls, (n, 1)),
            recommended=recommend(
                np.repeat(np.arange(n), k),
                np.tile(np.arange(k), n),
                self._worked.reshape(-1),
                self._means.reshape(-1),
                self._confidence.radius,
                points,
                np.broadcast_to(common, (n, d)),
            ),
        )
