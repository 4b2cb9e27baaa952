"""Settings of the eliminations: what they have in common, and what each of them adds; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from privbo.algorithms.elimination.tree import Confidence, Partition
from privbo.protocol.common import ReleaseWhen
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request, Setting
from privbo.protocol.settings import Count, Positive, Range, settings

Centre: TypeAlias = Literal["client", "middle"]
Outside: TypeAlias = Literal["clip", "absent"]

_UNIT_ROUNDOFF = 2.0**-53
_LOSS = "The optimum may be lost with a probability nothing here bounds."


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """The declared range of rewards, and the form in which mean rewards leave a client.

    Attributes:
        low, high: Bounds of a reward.
        outside: ``"clip"`` clips a reward outside, ``"absent"`` counts it as a failed evaluation.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened.
        centre: What a client subtracts before sending.
    """

    low: float
    high: float
    outside: Outside
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
        fate = "was clipped to it" if self.outside == "clip" else "contributed nothing"
        return f"a reward outside reward_range=({self.low:g}, {self.high:g}) {fate}; normalise the objective"

    def admit(self, rewards: FloatArray) -> FloatArray:
        """Rewards inside the range; those outside are clipped to it or become NaN, NaN passes."""
        if self.outside == "clip":
            return np.clip(rewards, self.low, self.high)
        return np.where(self.excludes(rewards), np.nan, rewards)

    def excludes(self, rewards: FloatArray) -> npt.NDArray[np.bool_]:
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

    def request(self, n_nodes: int, pulls: int, setting: Setting) -> Request:
        """The average over all clients of one vector with an entry per node.

        Args:
            n_nodes: K.
            pulls: t, pulls of every node by each client.
            setting: Public facts of the run.
        """
        return Request(
            dim=n_nodes,
            clipping_norm=self.clipping_norm(n_nodes),
            weights=np.full((1, setting.n_clients), 1.0 / setting.n_clients),
            unit=setting.unit,
            unit_bound=self._unit_bound(n_nodes, pulls, setting),
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
        if records.training is not None:
            raise ConfigurationError(
                "problem.training: every pull of an elimination would train a model of its own, and nothing is "
                "composed for them; use MultiTask(), or leave training out"
            )
        # Every pull is a mean over the records, so one of them moves every node's mean by width / n at most.
        rounding = one - 2 * self.half_width / pulls
        moved = 2 * self.half_width / min(records.counts) + rounding
        return records.per_person * math.sqrt(n_nodes) * moved

    def reward_bound(self, n_nodes: int, pulls: int) -> float:
        """Bound on how far one reward moves a client's vector: the range's width over t, and what rounding adds.

        A mean is a sum divided by t whatever failed, so another reward moves one entry by
        at most ``width / t``; subtracting the client's own mean over nodes shortens that. In
        each of the two worlds a sum of t rewards is off by at most t roundings of the largest.
        """
        largest = max(abs(self.low), abs(self.high))
        rounding = 4 * (pulls + n_nodes + 8) * _UNIT_ROUNDOFF * largest
        return 2 * self.half_width / pulls + rounding

    def vector(self, means: FloatArray, worked: FloatArray | None = None) -> FloatArray:
        """Vectors that clients send of their mean rewards ``(n, K)``.

        ``centre="middle"`` subtracts the middle of the range, which halves the sensitivity;
        ``"client"`` subtracts the client's own mean over the nodes, which removes vertical
        offsets between clients exactly. Either way differences between nodes are kept.

        Args:
            means: Of the pulls that worked.
            worked: Share of the pulls that did, ``(n, K)``, where one reward is the unit of
                privacy: then a failed pull counts as the middle of the range, so that no
                reward weighs more than one pull. None leaves failed pulls out.
        """
        middle = self.middle
        if worked is not None:
            means = middle + np.where(worked > 0, (means - middle) * worked, 0.0)
        if self.centre == "middle":
            return np.asarray(means - middle)
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
    outside: Outside = "clip"
    evaluations: Count | None = None

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not low < high:
            raise ConfigurationError(f"reward_range={self.reward_range!r} must be increasing; give (lowest, highest)")

    @property
    def caveat(self) -> str | None:
        """Say in one sentence what these settings give up; None if nothing."""
        return None

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell rests on fixed clipping norms."""
        return False

    @property
    def sharing(self) -> Sharing:
        """Form in which mean rewards leave a client."""
        low, high = self.reward_range
        return Sharing(low=low, high=high, outside=self.outside)

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
        return Partition(n_dims=setting.space.n_dims, n_children=self.n_children)


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
        super().__post_init__()
        if self.cap is not None and self.cap < self.n_children:
            raise ConfigurationError(f"cap={self.cap!r} must be at least n_children={self.n_children}, or None")
