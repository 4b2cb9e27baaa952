"""PE: clients that eliminate alone, those that pull what the server announces first, and the clock of silent rounds.

All clients of a cohort act at once: their active nodes are one list of (client, node)
pairs, sorted by client, so a thousand clients with different sets cost a few array
operations per depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from privbo.algorithms.elimination.forest import Forest
from privbo.algorithms.elimination.phases import Phase
from privbo.algorithms.elimination.pulls import PullTable, TreeCohort
from privbo.algorithms.elimination.settings import Confidence, Partition, PhasedSettings, TreeSettings
from privbo.protocol.common import spread
from privbo.protocol.messages import (
    Array,
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
from privbo.protocol.settings import settings

Stage2: TypeAlias = Literal["printed", "in-phase", "warm", "optimistic"]
AloneTail: TypeAlias = Literal["commit", "printed"]
AloneStage: TypeAlias = Literal["printed", "in-phase", "optimistic"]

# Silent rounds of the optimistic stage; a killed run repeats at most one of them.
SEGMENTS = 8


@dataclass
class Pairs:
    """Active (client, node) pairs of one depth, sorted by client; all arrays ``(p,)``."""

    owners: IntArray
    nodes: IntArray
    counts: IntArray
    means: FloatArray
    radii: FloatArray
    protected: BoolArray

    def __len__(self) -> int:
        return len(self.owners)

    def where(self, keep: BoolArray) -> Pairs:
        """The pairs that are kept."""
        return Pairs(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))

    def best(self) -> IntArray:
        """For every pair the position of its client's pair with the largest mean; unknown means lose."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        means = np.where(np.isnan(self.means), -np.inf, self.means)
        first = np.flatnonzero(np.diff(self.owners, prepend=self.owners[0] - 1))
        lengths = np.diff(np.append(first, len(self)))
        top = np.repeat(np.maximum.reduceat(means, first), lengths)
        positions = np.where(means == top, np.arange(len(self)), len(self))
        return np.asarray(np.repeat(np.minimum.reduceat(positions, first), lengths))

    def stays(self, variation: float) -> BoolArray:
        """Whether ``mu + b + nu1 rho^h >= mu_best - b_best``; protected and unknown nodes stay."""
        best = self.best()
        lower = self.means[best] - self.radii[best]
        drop = self.means + self.radii + variation < lower
        return ~drop | self.protected


@dataclass(frozen=True, kw_only=True)
class Survivors:
    """Nodes the server keeps of one depth, their average means and radii."""

    depth: int
    nodes: IntArray
    means: FloatArray
    radii: FloatArray

    def arrays(self) -> dict[str, Array]:
        """Named arrays for a broadcast."""
        return {f"survivor_{name}": np.asarray(value) for name, value in vars(self).items()}

    @staticmethod
    def of(arrays: Arrays) -> Survivors | None:
        """Read a broadcast's arrays; None if they say nothing of a phase."""
        if "survivor_nodes" not in arrays:
            return None
        depth, nodes = (np.asarray(arrays[f"survivor_{name}"], dtype=np.int64) for name in ("depth", "nodes"))
        means, radii = (np.asarray(arrays[f"survivor_{name}"], dtype=np.float64) for name in ("means", "radii"))
        return Survivors(depth=int(depth), nodes=nodes, means=means, radii=radii)


class PersonalCohort(TreeCohort):
    """Clients of PF-PNE; without a shared stage they are clients of PE alone.

    Args:
        algorithm: The tree, and how clients go on alone.
        setting: Public facts of the run.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.
    """

    def __init__(self, algorithm: PersonalSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        super().__init__(algorithm, setting, clients=clients, evaluate=evaluate)
        n = len(clients)
        self._stage2 = algorithm.stage2
        # Whether a client whose next pulls do not fit plays its best node, or else pulls on in order.
        self._commit = algorithm.tail == "commit"
        self._table = PullTable.empty()
        self._left = np.full(n, self._confidence.horizon, dtype=np.int64)
        self._left_to_share = self._confidence.horizon  # public: a refusal must not tell what a client has left
        self._best = np.zeros((n, 2), dtype=np.int64)
        self._survivors: dict[int, Survivors] = {}
        self._shared_rounds: dict[int, int] = {}
        self._alive: tuple[IntArray, ...] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        self._depth = -1
        self._answered = -1
        self._forest: Forest | None = None

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Play the shared phase and answer with centred means, or play a depth alone and send nothing."""
        shared = "nodes" in broadcast.arrays
        if broadcast.round > self._answered:
            if (survivors := Survivors.of(broadcast.arrays)) is not None:
                self._survivors[survivors.depth] = survivors
            play = self._play_shared if shared else self._play_alone
            play(broadcast)
            self._answered = broadcast.round
        if not shared:
            return np.zeros((len(self.clients), 0))
        own = self._own(int(broadcast.arrays["depth"]))
        return self._answer(own.means, own.worked / own.pulls)

    def _play_shared(self, broadcast: Broadcast) -> None:
        phase = Phase.shared(broadcast)
        phase.require_within(self._left_to_share)
        self._left_to_share -= sum(phase.pulls.tolist())
        depth, nodes = phase.depth, phase.nodes
        n, k = len(self.clients), len(nodes)
        owners = np.repeat(np.arange(n), k)
        self._shared_rounds[depth] = broadcast.round
        means, _ = self._pull(owners, depth, np.tile(nodes, n), np.tile(phase.pulls, n), broadcast.round)
        known = np.where(np.isnan(means), -np.inf, means).reshape(n, k)
        self._best = np.stack([np.full(n, depth), nodes[known.argmax(axis=1)]], axis=1)

    def _own(self, depth: int) -> PullTable:
        """Results of the clients in a shared phase, ``(n, K)``."""
        return self._table.of_phase(self._shared_rounds[depth], len(self.clients))

    def _play_alone(self, broadcast: Broadcast) -> None:
        """One depth of PE for all clients with pulls left; in the last silent round all that remain."""
        depth, self._left_to_share = int(broadcast.arrays["alone"]), 0
        if self._stage2 == "optimistic":
            self._play_segment(depth, broadcast.round)
            return
        following = self._depth + 1  # the depth behind the last one that was played alone, or behind the shared ones
        if self._depth < 0 and self._stage2 == "warm" and self._survivors:
            following = max(self._survivors) + 1
        for each in range(min(following, depth), depth + 1):  # those of rounds that were missed as well
            self._play_depth(each, broadcast.round)
        if bool(broadcast.arrays["last"]):
            while depth < self._partition.max_depth and len(self._alive[0]):
                depth += 1
                self._play_depth(depth, broadcast.round)
            self._spend(np.flatnonzero(self._left > 0), broadcast.round)

    def _play_depth(self, depth: int, round_: int) -> None:
        pairs = self._enter(depth)
        in_phase, threshold = self._stage2 != "printed", self._confidence.threshold(depth)
        looks = [2**j for j in range((threshold - 1).bit_length() if in_phase else 0)]  # at the means: pulls per node
        for target in [*looks, threshold]:
            if not len(pairs):
                break
            pairs = self._pull_to(pairs, depth, target, in_phase, round_)
            pairs = pairs.where(pairs.stays(self._confidence.variation(depth)))
        self._remember(pairs, depth)
        going = self._left[pairs.owners] > 0
        self._depth, self._alive = depth, (pairs.owners[going], pairs.nodes[going])

    def _play_segment(self, segment: int, round_: int) -> None:
        """A share of the remaining pulls, by every client's optimistic tree."""
        forest = self._plant() if self._forest is None else self._forest
        one = np.ones(len(self.clients), dtype=np.int64)
        turns = int(self._left[0]) // (SEGMENTS - segment)
        nodes, rewards = np.zeros((turns, len(one)), dtype=np.int64), np.zeros((turns, len(one)))
        for turn in range(turns):
            path = forest.select()
            nodes[turn] = path[-1]
            rewards[turn], _ = self._pull_points(self.clients, forest.points[np.arange(len(one)), path[-1]], one)
            forest.receive(path, np.where(np.isnan(rewards[turn]), self._sharing.low, rewards[turn]))
        self._left -= turns
        self._forest = forest
        self._table = forest.book(self._table, nodes, rewards, round_)

    def _plant(self) -> Forest:
        """Trees that know the shared phases."""
        forest = Forest.roots(len(self.clients), self._partition, self._space, self._confidence)
        for depth in sorted(self._shared_rounds):
            own = self._own(depth)
            # Of whoever missed the next round every node stays open: what the server kept was said there.
            survivors = self._survivors[depth].nodes if depth in self._survivors else own.nodes[0]
            means = self._sharing.counted(own.means, own.worked / own.pulls, "record")  # a failure is a low reward
            forest.seed(depth, own.nodes[0], means, int(own.pulls[0, 0]), survivors)
        forest.refresh()
        return forest

    def _enter(self, depth: int) -> Pairs:
        """The active pairs of a depth with all that is known of them."""
        owners, nodes = self._children(depth)
        pairs = Pairs(
            owners=owners,
            nodes=nodes,
            counts=np.zeros(len(nodes), dtype=np.int64),
            means=np.full(len(nodes), np.nan),
            radii=np.full(len(nodes), np.inf),
            protected=np.zeros(len(nodes), dtype=bool),
        )
        if depth in self._shared_rounds and len(pairs):
            own = self._own(depth)
            known = own.nodes[0]
            place = np.minimum(np.searchsorted(known, nodes), len(known) - 1)
            shared = known[place] == nodes
            pairs.means[shared] = own.means[owners[shared], place[shared]]
            pairs.counts[shared] = own.worked[owners[shared], place[shared]]
            pairs.radii = self._confidence.radius(pairs.counts)
        survivors = self._survivors.get(depth)
        if survivors is None or not len(survivors.nodes) or not len(pairs):
            return pairs
        # Nodes the server keeps enter with the average's mean and radius and are not pulled.
        place = np.minimum(np.searchsorted(survivors.nodes, pairs.nodes), len(survivors.nodes) - 1)
        pairs.protected = survivors.nodes[place] == pairs.nodes
        here = pairs.protected
        level = np.full(len(self.clients), self._sharing.middle)
        if self._sharing.centre == "client" and depth in self._shared_rounds:
            own = self._own(depth)  # a client adds what it subtracted; else the middle
            mine = self._sharing.counted(own.means, own.worked / own.pulls, self._unit).mean(axis=1)
            level = np.where(np.isnan(mine), level, mine)
        pairs.means[here] = survivors.means[place[here]] + level[pairs.owners[here]]
        pairs.radii[here] = survivors.radii[place[here]]
        return pairs

    def _children(self, depth: int) -> tuple[IntArray, IntArray]:
        """(client, node) pairs of a depth, sorted by client, of clients with pulls left."""
        able = np.flatnonzero(self._left > 0)
        if self._depth < 0:
            nodes = np.zeros(1, dtype=np.int64)
            if self._stage2 == "warm" and depth > 0:
                nodes = self._partition.children(self._survivors[depth - 1].nodes)
            return np.repeat(able, len(nodes)), np.tile(nodes, len(able))
        owners, nodes = self._alive
        return np.repeat(owners, self._partition.n_children), self._partition.children(nodes)

    def _pull_to(self, pairs: Pairs, depth: int, target: int, in_phase: bool, round_: int) -> Pairs:
        """Pull unprotected nodes up to ``target`` pulls; clients for whom that does not fit finish."""
        due = np.where(pairs.protected, 0, np.maximum(target - pairs.counts, 0))
        if in_phase:  # one node left: nothing to decide at this depth
            due[np.bincount(pairs.owners, minlength=len(self._left))[pairs.owners] == 1] = 0
        needed = np.bincount(pairs.owners, weights=due, minlength=len(self._left)).astype(np.int64)
        short = needed > self._left
        if short.any() and self._commit:
            self._remember(pairs, depth)
            self._spend(np.flatnonzero(short), round_)
            staying = ~short[pairs.owners]
            pairs, due = pairs.where(staying), due[staying]
        elif short.any():  # pulls of every client in order until its budget is spent
            ends, first = np.cumsum(due), np.searchsorted(pairs.owners, pairs.owners)
            before = ends - due - (ends[first] - due[first])
            due = np.clip(self._left[pairs.owners] - before, 0, due)
        asked = np.flatnonzero(due)
        if len(asked):
            fresh, worked = self._pull(pairs.owners[asked], depth, pairs.nodes[asked], due[asked], round_)
            good = worked > 0  # failures count for nothing
            asked, fresh, worked = asked[good], fresh[good], worked[good]
            before, total = pairs.counts[asked], pairs.counts[asked] + worked
            old = np.where(before > 0, pairs.means[asked], 0.0)
            pairs.means[asked] = (old * before + fresh * worked) / total
            pairs.counts[asked], pairs.radii[asked] = total, self._confidence.radius(total)
        if not self._commit:
            self._remember(pairs, depth)
        return pairs

    def _remember(self, pairs: Pairs, depth: int) -> None:
        """Best node of every client that knows the mean of one at this depth."""
        best = pairs.best()
        known = ~np.isnan(pairs.means[best]) if len(pairs) else np.zeros(0, dtype=bool)
        self._best[pairs.owners[known], 0] = depth
        self._best[pairs.owners[known], 1] = pairs.nodes[best[known]]

    def _spend(self, rows: IntArray, round_: int) -> None:
        """The clients in ``rows`` play their best node with all pulls they have left."""
        depths = self._best[rows, 0]
        for depth in np.unique(depths):
            here = rows[depths == depth]
            self._pull(here, int(depth), self._best[here, 1], self._left[here], round_)

    def _pull(
        self, owners: IntArray, depth: int, nodes: IntArray, pulls: IntArray, round_: int
    ) -> tuple[FloatArray, IntArray]:
        asked = pulls > 0
        means, worked = np.full(len(owners), np.nan), np.zeros(len(owners), dtype=np.int64)
        points = self._space.snap(self._partition.centres(depth, nodes[asked]))
        means[asked], worked[asked] = self._pull_points(self.clients[owners[asked]], points, pulls[asked])
        self._left -= np.bincount(owners, weights=pulls, minlength=len(self._left)).astype(np.int64)
        self._table = self._table.add(
            owners=owners, depth=depth, nodes=nodes, pulls=pulls, worked=worked, means=means, round_=round_
        )
        return means, worked

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        return self._judged(self._table, units)

    def snapshot(self) -> Arrays:
        """Everything (private)."""
        survivors = {
            f"{depth}_{name}": a for depth, each in self._survivors.items() for name, a in each.arrays().items()
        }
        forest = {} if self._forest is None else self._forest.arrays()
        state = {
            "left": self._left,
            "best": self._best,
            "alive": np.stack(self._alive),
            "state": np.array([self._depth, self._answered, self._left_to_share]),
            "shared_rounds": np.array(sorted(self._shared_rounds.items()), dtype=np.int64).reshape(-1, 2),
            "survivor_depths": np.array(list(self._survivors), dtype=np.int64),
        }
        return self._table.arrays() | forest | survivors | state

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``."""
        taken = {name: np.array(array) for name, array in snapshot.items()}
        self._table, self._forest = PullTable.of(taken), None
        if "forest_size" in taken:
            self._forest = Forest.of(taken, self._partition, self._space, self._confidence)
        self._left, self._best, self._alive = taken["left"], taken["best"], tuple(taken["alive"])
        self._depth, self._answered, self._left_to_share = taken["state"].tolist()
        self._shared_rounds = dict(taken["shared_rounds"].tolist())
        told = ({k.removeprefix(f"{depth}_"): a for k, a in taken.items()} for depth in taken["survivor_depths"])
        self._survivors = {each.depth: each for arrays in told if (each := Survivors.of(arrays)) is not None}

    def history(self) -> ClientHistory:
        """One evaluation per node and turn, the mean of its pulls (private); padded with NaN."""
        return self._history(self._table)


class PersonalSettings(PhasedSettings):
    """A phased elimination whose clients go on alone, if not from the first pull; its classes declare how."""

    answers_together: ClassVar[bool] = True
    stage2: Stage2
    tail: AloneTail

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return PersonalCohort(self, setting, clients=clients, evaluate=evaluate)


@settings(table="algorithm")
class PersonalElimination(PersonalSettings):
    """Elimination by every client alone (PE); nothing is ever sent.

    Attributes:
        horizon, evaluations, nu1, rho, c, c1, n_children, tail, reward_range: As for ``PFPNE``.
        stage2: ``"printed"``, ``"in-phase"`` or ``"optimistic"``.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    caveat: ClassVar[str | None] = None  # every form of it does what its settings say
    is_certified: ClassVar[bool] = False  # nothing is shared, so that no clipping norm matters
    type: Literal["pe"] = field(default="pe", repr=False)
    stage2: AloneStage = "optimistic"
    tail: AloneTail = "commit"

    def server(self, setting: Setting) -> AloneServer:
        """Make the public side: a clock."""
        rounds = silent_rounds(self.confidence(setting.n_clients), self.partition(setting), 0, self.stage2)
        return AloneServer(rounds, setting)

    def local(self) -> PersonalElimination:
        """Give itself: nothing is shared."""
        return self


def alone(shared: TreeSettings, **chosen: Any) -> PersonalElimination:  # noqa: ANN401  # further fields of the class
    """Give the clients of a shared elimination alone, with the same tree, horizon and rewards."""
    common = {each.name: getattr(shared, each.name) for each in fields(TreeSettings)}
    return PersonalElimination(**common, **chosen)


class AloneServer:
    """A clock of silent rounds, the public side of clients that share nothing from now on.

    Args:
        depths: What all clients play alone round by round: a depth, or a share of the pulls.
        setting: Public facts of the run.
        first_round: Number of the first silent round.
        survivors: What the server kept of the last shared phase, told in every round; None without one.
    """

    def __init__(
        self, depths: range, setting: Setting, *, first_round: int = 0, survivors: Survivors | None = None
    ) -> None:
        self._depths, self._space, self._round = depths, setting.space, first_round
        self._survivors = {} if survivors is None else survivors.arrays()

    def plan(self) -> Iterator[Request]:
        """Nothing is ever released."""
        return iter(())

    def ask(self) -> Ask | None:
        """The next silent round; None after the last."""
        if not self._depths:
            return None
        arrays = {"alone": np.array(self._depths[0]), "last": np.array(len(self._depths) == 1)}
        return Ask(broadcast=Broadcast(round=self._round, arrays=arrays | self._survivors), request=None)

    def request_for(self, broadcast: Broadcast) -> Request | None:  # noqa: ARG002  # the protocol's
        """Nothing is ever asked for."""
        return None

    def tell(self, release: Release | None) -> None:  # noqa: ARG002  # always None: nothing was asked for
        """Go on."""
        self._round += 1
        self._depths = self._depths[1:]

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: points that fill the space, since nothing is known of any."""
        return spread(self._space, count, np.zeros(self._space.n_dims))


def silent_rounds(confidence: Confidence, partition: Partition, start: int, stage2: Stage2) -> range:
    """Depths of the silent rounds; their number is public and must not depend on how far clients came.

    An optimistic stage has a fixed number of equal shares. The others have one round per depth up to that whose nodes
    cannot all reach their threshold, and play whatever lies deeper in the last one.
    """
    if stage2 == "optimistic":
        return range(SEGMENTS)
    last = start
    while last < partition.max_depth and partition.n_children * confidence.threshold(last) <= confidence.horizon:
        last += 1
    return range(start, last + 1)
