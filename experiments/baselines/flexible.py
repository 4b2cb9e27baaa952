"""X-armed bandits with flexible personalisation: every client optimises a mixture of its own objective and the average.

Arabzadeh, Grant, Leslie, "Federated X-armed bandit with flexible personalisation" (TMLR 2024). Client m looks for the
maximum of ``alpha f_m + (1 - alpha) f``, f being the average over clients, by phased elimination with a release in
every phase. Only the abstract and the introduction were at hand; assumed and chosen here:

- A phase of depth h takes ``(1 - alpha) tau_h`` shared pulls of a node over all clients and ``alpha tau_h`` of a
  client's own, so that both parts of the mixture are known alike. Own pulls go to nodes that are active for the client.
- Which nodes are active for whom is private. The server therefore keeps every node that could be best for anybody
  whose objective differs from the average by at most D: those within ``2 alpha D`` of the average's best. Which of
  them a client has given up stays with the client.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.algorithms.elimination.alone import PersonalElimination, Survivors, alone
from privbo.algorithms.elimination.pf_pne import PFPNEServer
from privbo.algorithms.elimination.pulls import PullTable, TreeCohort
from privbo.algorithms.elimination.settings import CappedSettings, Confidence
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting
from privbo.protocol.settings import settings

BoolArray = npt.NDArray[np.bool_]


@settings(table="algorithm")
class FlexibleXArmed(CappedSettings):
    """Federated X-armed bandit with flexible personalisation.

    Every phase is one release, of mean rewards over the nodes that may be best for somebody; then a client plays the
    best node of its mixture with all pulls that are left.

    Attributes:
        own_share: alpha, the share of a client's own objective in what it maximises; 0 is the average, 1 its own.
        heterogeneity: D, largest difference between a client's objective and the average; with it no client loses the
            optimum of its mixture, except by the chances that ``c`` leaves.
        horizon, evaluations, nu1, rho, c, c1, n_children, cap, clip, widen, centre, release_when, reward_range: As for
            ``PFPNE``.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=40)
        >>> algorithm = FlexibleXArmed(evaluations=22, release_when="always")
        >>> pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=20).releases
        3
    """

    answers_together: ClassVar[bool] = True  # its cohort raises for no client's data
    own_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    heterogeneity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1

    def shared_pulls(self, confidence: Confidence, depth: int) -> int:
        """Shared pulls of every active node by each client: (1 - alpha) tau_h over all clients, at least one each."""
        return max(1, math.ceil((1.0 - self.own_share) * confidence.threshold(depth) / confidence.n_clients))

    def node_pulls(self, confidence: Confidence, depth: int) -> int:
        """Most pulls of a node by one client in a phase: alpha tau_h of its own, those that are shared among them."""
        return max(self.shared_pulls(confidence, depth), math.ceil(self.own_share * confidence.threshold(depth)))

    def server(self, setting: Setting) -> FlexibleServer:
        """Make the public side."""
        return FlexibleServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> FlexibleCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return FlexibleCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every client alone from the first pull.

        Example:
            >>> FlexibleXArmed(evaluations=22).local().evaluations
            22
        """
        return alone(self, c=self.c, c1=self.c1, stage2="in-phase")


class FlexibleServer(PFPNEServer):
    """The public side: shared phases to the end, in which fewer nodes are surely best for nobody; then one round."""

    def __init__(self, algorithm: FlexibleXArmed, setting: Setting) -> None:
        self._own = algorithm
        super().__init__(algorithm, setting, cap=algorithm.cap)  # type: ignore[arg-type]  # what only PF-PNE has is replaced

    def _lengths(self) -> Iterable[int]:
        """Pulls whatever is eliminated: no node, or what the cap leaves."""
        most = self._own.cap or self._own.budget
        for depth in range(self._partition.max_depth + 1):
            yield self._length(depth, min(self._own.n_children**depth, most))

    def _pulls(self, depth: int, n_nodes: int) -> int:  # noqa: ARG002  # the same for any number
        return self._own.shared_pulls(self._confidence, depth)

    def _length(self, depth: int, n_nodes: int) -> int:
        return n_nodes * self._own.node_pulls(self._confidence, depth)

    def _silent_rounds(self, depth: int) -> range:  # noqa: ARG002  # one, wherever the shared ones ended
        return range(1)

    def _deficit(self, depth: int) -> float:
        """What the average may lack and a client's own part make up for, 2 alpha D, and what a cell hides."""
        return super()._deficit(depth) + 2.0 * self._own.own_share * self._own.heterogeneity


class FlexibleCohort(TreeCohort):
    """Clients of ``FlexibleXArmed``.

    Args:
        algorithm: The tree, the mixture, and the form in which means are shared.
        setting: What both sides are told.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.
    """

    def __init__(self, algorithm: FlexibleXArmed, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        super().__init__(algorithm, setting, clients=clients, evaluate=evaluate)
        self._algorithm, n = algorithm, len(clients)
        self._shared, self._extra = PullTable.empty(), PullTable.empty()
        self._left = np.full(n, self._confidence.horizon, dtype=np.int64)
        # Nodes of the last phase, and which of them each client has not given up.
        self._nodes: IntArray = np.zeros(0, dtype=np.int64)
        self._active: BoolArray = np.zeros((n, 0), dtype=bool)
        self._best = np.zeros((n, 2), dtype=np.int64)
        self._last = np.array([-1, -1], dtype=np.int64)  # round that was answered last, and depth of the last phase

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Eliminate by what was released, play the phase and answer with centred means, or play on in silence."""
        shared, n = "nodes" in broadcast.arrays, len(self.clients)
        if broadcast.round > self._last[0]:
            if (survivors := Survivors.of(broadcast.arrays)) is not None:
                self._eliminate(survivors)
            if shared:
                self._play(broadcast)
            else:
                self._commit(broadcast.round)
            self._last[0] = broadcast.round
        if not shared:
            return np.zeros((n, 0))
        own = self._shared.of_phase(broadcast.round, n)
        return self._answer(own.means, own.worked / own.pulls)

    def _play(self, broadcast: Broadcast) -> None:
        """Shared pulls of every node, then own ones of what is active for a client."""
        depth, nodes = int(broadcast.arrays["depth"]), np.asarray(broadcast.arrays["nodes"], dtype=np.int64)
        n, k = len(self.clients), len(nodes)
        self._descend(depth, nodes)
        each = int(broadcast.arrays["pulls"])
        everybody = np.repeat(np.arange(n), k), np.tile(nodes, n)
        self._shared = self._pulled(self._shared, *everybody, depth, each, broadcast.round)
        more = self._algorithm.node_pulls(self._confidence, depth) - each
        if more > 0:
            owners, places = np.nonzero(self._active)
            self._extra = self._pulled(self._extra, owners, nodes[places], depth, more, broadcast.round)

    def _descend(self, depth: int, nodes: IntArray) -> None:
        """Go on at another depth: a node is given up where one above it was, also after rounds that were missed."""
        n = len(self.clients)
        if self._last[1] < 0:
            self._active = np.ones((n, len(nodes)), dtype=bool)
        else:
            above = nodes // self._partition.n_children ** (depth - int(self._last[1]))
            self._active = self._active[:, np.searchsorted(self._nodes, above)]
        self._nodes, self._last[1] = nodes, depth

    def _eliminate(self, survivors: Survivors) -> None:
        """Give up nodes whose mixture is surely below the best one's; the averages of those not kept are surely so."""
        if survivors.depth != self._last[1]:  # its round was missed: nothing is known of a client's own part
            self._descend(survivors.depth, survivors.nodes)
            return
        means, counts = self._own()
        place = np.searchsorted(self._nodes, survivors.nodes)
        alpha, confidence = self._algorithm.own_share, self._confidence
        offered = np.where(np.isnan(means), 0.0, means)[:, place]
        mixture = alpha * offered + (1.0 - alpha) * survivors.means
        radius = (
            alpha * confidence.radius(counts[:, place]) + (1.0 - alpha) * survivors.radii if alpha else survivors.radii
        )
        radius = np.broadcast_to(radius, mixture.shape)
        active = self._active[:, place]
        lower = np.where(active, mixture - radius, -np.inf).max(axis=1, keepdims=True)
        stays = active & (mixture + radius + confidence.variation(survivors.depth) >= lower)
        known = active & (counts[:, place] > 0)
        best = np.where(known, mixture, -np.inf).argmax(axis=1)
        found = known.any(axis=1)
        self._best[found] = np.stack([np.full(found.sum(), survivors.depth), survivors.nodes[best[found]]], axis=1)
        self._nodes, self._active = survivors.nodes, stays

    def _own(self) -> tuple[FloatArray, IntArray]:
        """Centred own means over the last phase's nodes by all pulls, and how many of these worked, ``(n, k)``."""
        n, k = len(self.clients), len(self._nodes)
        totals, counts = np.zeros((n, k)), np.zeros((n, k), dtype=np.int64)
        for table in (self._shared, self._extra):
            here = table.of_round(int(self._last[0]))
            place = np.searchsorted(self._nodes, here.nodes)
            np.add.at(totals, (here.owners, place), np.where(here.worked > 0, here.worked * here.means, 0.0))
            np.add.at(counts, (here.owners, place), here.worked)
        with np.errstate(invalid="ignore"):
            return self._sharing.vector(totals / counts), counts

    def _commit(self, round_: int) -> None:
        """Play the best node with all pulls that are left."""
        for depth in np.unique(self._best[:, 0]):
            rows = np.flatnonzero((self._best[:, 0] == depth) & (self._left > 0))
            if len(rows):
                self._extra = self._pulled(self._extra, rows, self._best[rows, 1], int(depth), self._left[rows], round_)

    def _pulled(
        self, table: PullTable, owners: IntArray, nodes: IntArray, depth: int, pulls: int | IntArray, round_: int
    ) -> PullTable:
        """A table with what more pulls gave."""
        counts = np.broadcast_to(np.asarray(pulls, dtype=np.int64), owners.shape).copy()
        points = self._space.snap(self._partition.centres(depth, nodes))
        means, worked = self._pull_points(self.clients[owners], points, counts)
        self._left -= np.bincount(owners, weights=counts, minlength=len(self._left)).astype(np.int64)
        return table.add(
            owners=owners, depth=depth, nodes=nodes, pulls=counts, worked=worked, means=means, round_=round_
        )

    def _everything(self) -> PullTable:
        """All pulls in the order of rounds."""
        both = PullTable(**{name: np.append(a, vars(self._extra)[name]) for name, a in vars(self._shared).items()})
        order = np.argsort(both.rounds, kind="stable")
        return PullTable(**{name: array[order] for name, array in vars(both).items()})

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        return self._judged(self._everything(), units)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything (private)."""
        tables = {"shared": self._shared, "extra": self._extra}
        rows = {f"{name}_{key}": array for name, table in tables.items() for key, array in table.arrays().items()}
        state = {
            "left": self._left,
            "nodes": self._nodes,
            "active": self._active,
            "best": self._best,
            "last": self._last,
        }
        return rows | {name: array.copy() for name, array in state.items()}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        taken = {name: np.array(array) for name, array in snapshot.items()}
        of = {name: {k.removeprefix(f"{name}_"): a for k, a in taken.items()} for name in ("shared", "extra")}
        self._shared, self._extra = PullTable.of(of["shared"]), PullTable.of(of["extra"])
        self._left, self._nodes, self._active = taken["left"], taken["nodes"], taken["active"]
        self._best, self._last = taken["best"], taken["last"]

    def history(self) -> ClientHistory:
        """One evaluation per node and turn, the mean of its pulls (private); padded with NaN."""
        return dataclasses.replace(self._history(self._everything()), recommended=self._points(self._space.n_dims))

    def _points(self, n_dims: int) -> FloatArray:
        """The point of every client's best node of its mixture, ``(n, n_dims)``."""
        points = self._partition.points(self._space, self._best[:, 0], self._best[:, 1])
        return points.reshape(-1, n_dims)
