"""Fed-PNE: clients find the optimum of their average objective by phased node elimination.

Li et al., "Federated X-armed bandit". The server keeps a set of active nodes, all clients
pull every one of them equally often, and the averages decide which nodes go on to be split.
A run takes a handful of phases; each is one release.

Private form: a client's answer is its vector of mean rewards, centred, clipped to
``S = clip sqrt(K)``; every comparison of the server is widened by the release's noise.

*Certified* (the default): no cap, no clipping below the declared range. Where c covers the
reward noise, the optimum's cell survives with probability at least 1 - delta_b - 0.05.
*Heuristic* (``FedPNE.heuristic()``): a cap drops nodes untested and tight clipping biases
means, so no such probability is promised; the regret is far lower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.fed_pne_server import FedPNEServer
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.phases import PhaseCohort
from privbo.algorithms.elimination.rewards import Centre, Outside, RewardRange
from privbo.algorithms.elimination.sharing import Sharing, require_cap
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Evaluate, IntArray, Setting

if TYPE_CHECKING:
    from privbo.algorithms.elimination.alone import PersonalElimination

Expand: TypeAlias = Literal["ktau", "tau", "none"]
Tail: TypeAlias = Literal["commit", "printed", "stop"]


@dataclass(frozen=True, kw_only=True)
class FedPNE:
    """Federated phased node elimination.

    ``rounds`` of a run is the largest number of phases; a run that has made them, or whose
    next phase does not fit the horizon, plays its tail in silence.

    Attributes:
        horizon: T, pulls of every client.
        nu1: Variation of the average objective over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals; 0.1 covers reward noise of about +-0.1.
        c1: Factor in their logarithm.
        n_children: k, 2 or 3.
        expand: Before a phase the nodes are split while ``"ktau"``: K tau_h < M (or at the
            root), ``"tau"``: tau_h < M, ``"none"``: never.
        tail: What is left of the horizon: ``"commit"`` plays the best node, ``"printed"``
            starts the phase that does not fit, ``"stop"`` leaves it.
        cap: Most active nodes after the first phase, or None; the best ones are kept. A
            capped run may drop the optimum untested.
        releases: Most releases, or None for as many as rounds and horizon allow. Noise that
            is larger than what still separates nodes makes late phases a lottery.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened; below 1
            the survival of the optimum's cell is not covered.
        centre: ``"middle"`` or ``"client"``, what a client subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"error"`` or ``"clip"`` for rewards outside.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    horizon: int = 5000
    nu1: float = 1.0
    rho: float = 0.5
    c: float = 0.1
    c1: float = 1.0
    n_children: int = 2
    expand: Expand = "ktau"
    tail: Tail = "commit"
    cap: int | None = None
    releases: int | None = None
    clip: float | None = None
    widen: float = 1.0
    centre: Centre = "middle"
    reward_range: tuple[float, float] = (0.0, 1.0)
    outside: Outside = "error"

    def __post_init__(self) -> None:
        self.confidence(1)
        require_cap(self.cap, self.n_children)
        if self.releases is not None and self.releases < 1:
            raise ConfigurationError(f"releases={self.releases!r} must be at least 1, or None")
        if self.expand not in ("ktau", "tau", "none"):
            raise ConfigurationError(f"expand={self.expand!r} must be 'ktau', 'tau' or 'none'")
        if self.tail not in ("commit", "printed", "stop"):
            raise ConfigurationError(f"tail={self.tail!r} must be 'commit', 'printed' or 'stop'")
        object.__setattr__(self, "reward_range", tuple(self.reward_range))
        _ = self.sharing

    @classmethod
    def heuristic(cls, **changes: Any) -> FedPNE:  # noqa: ANN401  # the fields of this class
        """The low-regret private form: at most 8 active nodes, 5 releases, s = 0.15, client-centred.

        The cap drops nodes untested and so tight a clip biases means: the optimum may be lost.
        """
        return replace(cls(cap=8, releases=5, clip=0.15, centre="client"), **changes)

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell is covered (if c covers the reward noise)."""
        return self.cap is None and self.sharing.covers_noise

    @property
    def caveat(self) -> str | None:
        """What a page of a run says of a heuristic form."""
        said = self.sharing.caveat(self.cap)
        return said and f"{said}. The optimum may be lost with a probability nothing here bounds."

    @property
    def sharing(self) -> Sharing:
        """How mean rewards leave a client."""
        allowed = RewardRange.of(self.reward_range, self.outside)
        return Sharing(allowed=allowed, clip=self.clip, widen=self.widen, centre=self.centre)

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii for M clients."""
        return Confidence(horizon=self.horizon, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=self.c, c1=self.c1)

    def server(self, setting: Setting) -> FedPNEServer:
        """The public side."""
        return FedPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """The private side; the clients draw nothing at random."""
        return PhaseCohort(
            setting,
            partition=Partition(n_dims=setting.space.n_dims, n_children=self.n_children),
            clients=clients,
            evaluate=evaluate,
            sharing=self.sharing,
        )

    def local(self) -> PersonalElimination:
        """Every client eliminates alone, with its own pulls."""
        from privbo.algorithms.elimination.alone import PersonalElimination

        return PersonalElimination(
            horizon=self.horizon,
            nu1=self.nu1,
            rho=self.rho,
            c=self.c,
            c1=self.c1,
            n_children=self.n_children,
            reward_range=self.reward_range,
            outside=self.outside,
        )
