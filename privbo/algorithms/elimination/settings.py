"""Settings of the eliminations: what they have in common, and what each of them adds; nothing here is private.

The partition that every client and the server share is deterministic, seed-free and never stored. A node is a pair
(depth, index). Depth h holds ``k^h`` nodes; the children of node i are ``k i, ..., k i + k - 1`` and split dimension
``h mod d`` of its cell into k equal parts. A set of nodes of one depth is an integer array, so 100,000 active nodes are
less than a megabyte. (The papers count nodes from 1; here they count from 0.)

Nodes' pulls and the width of their confidence intervals are those of Fed-PNE and PF-PNE (PF-PNE, section 3.1): with
``L = log(c1 T / delta_b)``, ``tau_h = ceil(c^2 L rho^(-2h) / nu1^2)`` pulls make the half-width ``b = c sqrt(L / n)``
at most ``nu1 rho^h``, the largest variation of the objective inside a cell of depth h. ``delta_b = 1 / M`` is the
bandits' failure probability and has nothing to do with the delta of privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from privbo.protocol.common import ReleaseWhen
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, FloatArray, IntArray, Request, Setting, UnitName
from privbo.protocol.settings import Count, Positive, Range, settings
from privbo.protocol.space import Space

# The release noise of a whole run stays within its half-width with probability 1 - NOISE_FAILURE.
NOISE_FAILURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A k-ary partition of the unit cube.

    Attributes:
        n_dims: d, number of coordinates.
        n_children: k, 2 or 3.
        deepest: Most depth of use; less than all where a space is finite.
    """

    n_dims: int
    n_children: int = 2
    deepest: int = 62

    @property
    def max_depth(self) -> int:
        """Deepest level of use whose indices fit 64-bit integers and whose centres fit doubles."""
        bits = math.log2(self.n_children)
        return min(int(52 / bits) * self.n_dims, int(62 / bits), self.deepest)

    def children(self, nodes: IntArray) -> IntArray:
        """Indices of all children, ``(k n,)``, those of one parent side by side."""
        return (nodes[:, None] * self.n_children + np.arange(self.n_children)).ravel()

    def centres(self, depth: int, nodes: IntArray) -> FloatArray:
        """Centres of cells in the unit cube, ``(n, n_dims)``.

        Raises:
            ConfigurationError: If ``depth`` has no nodes that numbers can represent.
        """
        if not 0 <= depth <= self.max_depth:
            raise ConfigurationError(
                f"depth={depth} must lie in [0, {self.max_depth}]; the settings ask for cells "
                "below the resolution of the search space: raise rho or lower the horizon"
            )
        numerators = np.zeros((len(nodes), self.n_dims))
        power = self.n_children**depth
        rest = np.asarray(nodes, dtype=np.int64)
        for level in range(depth):
            power //= self.n_children
            digit, rest = rest // power, rest % power
            column = numerators[:, level % self.n_dims]
            column *= self.n_children
            column += digit
        return np.asarray((numerators + 0.5) / self.scales(depth))

    def points(self, space: Space, depths: IntArray, nodes: IntArray) -> FloatArray:
        """Canonical points at the centres of cells of any depths, ``(n, n_dims)``."""
        points = np.zeros((len(nodes), self.n_dims))
        for depth in np.unique(depths):
            here = depths == depth
            points[here] = space.snap(self.centres(int(depth), nodes[here]))
        return points

    def scales(self, depth: int) -> FloatArray:
        """Number of cells of a depth along every dimension, ``(n_dims,)``."""
        splits = [len(range(dim, depth, self.n_dims)) for dim in range(self.n_dims)]
        return np.array([float(self.n_children**count) for count in splits])


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Smoothness and confidence of a run.

    Attributes:
        horizon: T, pulls of one client over the whole run.
        n_clients: M.
        nu1: Variation of the objective over the whole space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals, > 0; 0.1 covers reward noise of about +-0.1, the
            theory of rewards in [0, 1] asks for 2.
        c1: Factor inside the logarithm, > 0.
    """

    horizon: int
    n_clients: int
    nu1: float
    rho: float
    c: float
    c1: float

    @property
    def log_term(self) -> float:
        """``log(c1 T M)``, at least 0."""
        return max(0.0, math.log(self.c1 * self.horizon * self.n_clients))

    def threshold(self, depth: int) -> int:
        """tau_h: pulls, over all clients, that a node of this depth needs."""
        return pulls_of(self.log_term, math.log(self.nu1) - math.log(self.c) + depth * math.log(self.rho))

    def pulls_per_client(self, depth: int) -> int:
        """ceil(tau_h / M), so that every node reaches its threshold."""
        return -(-self.threshold(depth) // self.n_clients)

    def variation(self, depth: int) -> float:
        """``nu1 rho^h``."""
        return float(self.nu1 * self.rho**depth)

    def radius(self, pulls: float | IntArray | FloatArray) -> FloatArray:
        """``c sqrt(L / n)`` after ``n`` pulls; infinite after none."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.c * np.sqrt(self.log_term / np.asarray(pulls, dtype=np.float64)))


def pulls_of(log_term: float, log_width: float) -> int:
    """``ceil(L / width^2)`` between 1 and 2^53, from the logarithm of the width: its square may be no double."""
    log = math.log(max(log_term, 1e-300)) - 2.0 * log_width
    return 2**53 if log >= 53 * math.log(2.0) else max(1, math.ceil(math.exp(log)))


def noise_half_width(noise_stddev: float, n_nodes: int, n_releases: int, n_clients: int) -> float:
    """Half-width within which all noise of a run stays with probability 0.95.

    ``sigma sqrt(2 log(2 K P / 0.05))``: union bound over the K entries of each of P releases. Every client's entry is
    truncated to a grid, whose step is at most ``2^-16 sigma``.

    Args:
        noise_stddev: Standard deviation of the noise in one released entry.
        n_nodes: K, entries of this release.
        n_releases: P, planned releases of the run.
        n_clients: M.
    """
    return noise_stddev * (math.sqrt(2.0 * math.log(2.0 * n_nodes * n_releases / NOISE_FAILURE)) + n_clients * 2.0**-16)


Centre: TypeAlias = Literal["client", "middle"]

_UNIT_ROUNDOFF = 2.0**-53
_LOSS = "The optimum may be lost with a probability nothing here bounds."


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """The declared range of rewards, and the form in which mean rewards leave a client.

    Attributes:
        low, high: Bounds of a reward.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened.
        centre: What a client subtracts before sending.
    """

    low: float
    high: float
    clip: float | None = None
    widen: float = 1.0
    centre: Centre = "middle"

    @property
    def half_width(self) -> float:
        """Largest distance of a reward from the middle."""
        return 0.5 * (self.high - self.low)

    @property
    def middle(self) -> float:
        """Middle of the range."""
        return 0.5 * (self.high + self.low)

    @property
    def words(self) -> str:
        """Words for a client whose reward lies outside; the value is not named."""
        range_ = f"reward_range=({self.low:g}, {self.high:g})"
        return f"a reward outside {range_} was clipped to it; normalise the objective"

    def admit(self, rewards: FloatArray) -> FloatArray:
        """Rewards clipped to the range; NaN passes."""
        return np.clip(rewards, self.low, self.high)

    def excludes(self, rewards: FloatArray) -> BoolArray:
        """Tell which rewards lie outside; private."""
        return (rewards < self.low) | (rewards > self.high)

    def caveat(self, cap: int | None, loss: str = _LOSS) -> str | None:
        """Say for pages what a form with these settings gives up; None where comparisons are covered.

        Args:
            cap: Most nodes of a shared phase, or None.
            loss: Sentence on what may be lost by it.
        """
        clips = self.clipping_norm(1) < self.half_width
        faults = {
            f"a cap of {cap} drops nodes untested": cap is not None,
            f"clipping at {self.clip} sqrt(K) biases mean rewards": clips,
            f"radii widened by {self.widen:g} half-widths do not cover the noise": self.widen < 1,
        }
        reasons = [fault for fault, is_there in faults.items() if is_there]
        return f"Heuristic form: {'; '.join(reasons)}. {loss}" if reasons else None

    def clipping_norm(self, n_nodes: int) -> float:
        """S for a phase of K nodes."""
        return (self.half_width if self.clip is None else self.clip) * math.sqrt(n_nodes)

    def request(self, n_nodes: int, pulls: int, setting: Setting, *, most: int) -> Request:
        """The average over all clients of one vector with an entry per node.

        Args:
            n_nodes: K.
            pulls: t, pulls of every node by each client.
            setting: Public facts of the run.
            most: Most pulls of a client behind this release; charged where every pull trains a model.
        """
        records = setting.records
        return Request(
            dim=n_nodes,
            clipping_norm=self.clipping_norm(n_nodes),
            weights=np.full((1, setting.n_clients), 1.0 / setting.n_clients),
            unit=setting.unit,
            unit_bound=self._unit_bound(n_nodes, pulls, setting),
            group_size=1 if records is None else records.per_person,
            training=None if records is None else records.trained(most),
        )

    def _unit_bound(self, n_nodes: int, pulls: int, setting: Setting) -> float | None:
        """Bound on how far one reward, or one record, moves a client's vector; None where one client is the unit."""
        records = setting.records
        if setting.unit == "client" or (setting.unit == "record" and records is None):
            return None
        one = self.reward_bound(n_nodes, pulls)
        if setting.unit == "reward" or records is None:
            return one
        if (records.low, records.high) != (self.low, self.high):
            raise ConfigurationError(
                f"reward_range=({self.low:g}, {self.high:g}) must be score_range=({records.low:g}, {records.high:g}) "
                "where one record is the unit of privacy: a reward is a mean of scores"
            )
        # Every pull is a mean over the records, so one of them moves every node's mean by width / n at most.
        rounding = one - 2 * self.half_width / pulls
        moved = 2 * self.half_width / min(records.counts) + rounding
        return math.sqrt(n_nodes) * moved

    def reward_bound(self, n_nodes: int, pulls: int) -> float:
        """Bound on how far one reward moves a client's vector: the range's width over t, and what rounding adds.

        A mean is a sum divided by t whatever failed, so another reward moves one entry by
        at most ``width / t``; subtracting the client's own mean over nodes shortens that. In
        each of the two worlds a sum of t rewards is off by at most t roundings of the largest.
        """
        largest = max(abs(self.low), abs(self.high))
        rounding = 4 * (pulls + n_nodes + 8) * _UNIT_ROUNDOFF * largest
        return 2 * self.half_width / pulls + rounding

    def counted(self, means: FloatArray, worked: FloatArray | float = 1.0, unit: UnitName = "client") -> FloatArray:
        """Mean rewards ``(n, K)`` with what failed counted.

        Args:
            means: Of the pulls that worked.
            worked: Share of the pulls that did, ``(n, K)``.
            unit: Of privacy. Failed pulls of a client are left out, nodes all of whose pulls failed count as the lower
                end of the range, and who has no others is absent. Of a reward failed pulls count as the middle of the
                range, so that no reward weighs more than one pull; of a record as its lower end, so that none is an
                absence.
        """
        if unit == "client":
            some = ~np.isnan(means).all(axis=1, keepdims=True)
            return np.where(some & np.isnan(means), self.low, means)
        failed = self.low if unit == "record" else self.middle
        return np.asarray(failed + np.where(worked > 0, (means - failed) * worked, 0.0))

    def vector(self, means: FloatArray, worked: FloatArray | float = 1.0, unit: UnitName = "client") -> FloatArray:
        """Vectors that clients send of their mean rewards ``(n, K)``.

        ``centre="middle"`` subtracts the middle of the range, which halves the sensitivity;
        ``"client"`` subtracts the client's own mean over the nodes, which removes vertical
        offsets between clients exactly. Either way differences between nodes are kept. Arguments as of ``counted``.
        """
        means = self.counted(means, worked, unit)
        if self.centre == "middle":
            return np.asarray(means - self.middle)
        return np.asarray(means - means.mean(axis=1, keepdims=True))


# c of rewards in [0, 1]: b = sqrt(L / 2n).
HOEFFDING = 2.0**-0.5

Fraction: TypeAlias = Annotated[float, Field(gt=0, lt=1)]


@settings(table="algorithm")
class TreeSettings:
    """Horizon, smoothness, tree and declared rewards of an elimination."""

    horizon: Count = 5000
    nu1: Positive = 1.0
    rho: Fraction = 0.5
    n_children: Annotated[int, Field(ge=2, le=3)] = 2
    reward_range: Range = (0.0, 1.0)
    evaluations: Count | None = None

    @property
    def sharing(self) -> Sharing:
        """Form in which mean rewards leave a client."""
        low, high = self.reward_range
        return Sharing(low=low, high=high)

    @property
    def budget(self) -> int:
        """Most pulls of one client over the whole run: the horizon, or ``evaluations`` where that is less."""
        return self.horizon if self.evaluations is None else min(self.horizon, self.evaluations)

    def calls_per_client(self, setting: Setting) -> int:  # noqa: ARG002  # the same for every run
        """Give the most calls of the objective by one client: its pulls."""
        return self.budget

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii of M clients; those of rewards in [0, 1] (Hoeffding) where no ``c`` is set."""
        return Confidence(horizon=self.budget, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=HOEFFDING, c1=1.0)

    def partition(self, setting: Setting) -> Partition:
        """The tree over a run's space.

        Raises:
            ConfigurationError: If the space has constraints, which no box keeps.
        """
        if setting.space.constraints:
            raise ConfigurationError(
                f"constraints {list(setting.space.constraints)}: an elimination halves boxes and knows none; use "
                "shared-prior or dp-fts-de, or narrow the parameters' bounds"
            )
        # A value's bin is no narrower than the last one, which ends at 1; reals have none. Cells as narrow reach all.
        last = max(float(parameter.snap(np.ones(1))[0]) for parameter in setting.space.parameters.values())
        splits = math.ceil(-math.log(2.0 * (1.0 - last)) / math.log(self.n_children) - 1e-9) if last < 1 else 62
        return Partition(n_dims=setting.space.n_dims, n_children=self.n_children, deepest=setting.space.n_dims * splits)


@settings(table="algorithm")
class PhasedSettings(TreeSettings):
    """An elimination whose nodes have thresholds tau_h."""

    c: Positive = 0.1
    c1: Positive = 1.0

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii for M clients; delta_b = 1/M."""
        return replace(super().confidence(n_clients), c=self.c, c1=self.c1)


@settings(table="algorithm")
class SharingSettings(TreeSettings):
    """An elimination whose clients send mean rewards."""

    clip: Positive | None = None
    widen: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    centre: Centre = "middle"
    release_when: ReleaseWhen = "useful"

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what a heuristic form gives up; None for the certified one."""
        return self.sharing.caveat(getattr(self, "cap", None))

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell is covered (if c covers the reward noise)."""
        return self.caveat is None

    @property
    def sharing(self) -> Sharing:
        """Form in which mean rewards leave a client."""
        return replace(super().sharing, clip=self.clip, widen=self.widen, centre=self.centre)


@settings(table="algorithm")
class CappedSettings(PhasedSettings, SharingSettings):
    """A phased elimination whose active set may be capped."""

    cap: Count | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and self.cap < self.n_children:
            raise ConfigurationError(f"cap={self.cap!r} must be at least n_children={self.n_children}, or None")
