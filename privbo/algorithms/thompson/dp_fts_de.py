"""DP-FTS-DE: differentially private federated Thompson sampling with distributed exploration.

Dai, Low and Jaillet 2021, Algorithm 1 (the server) and its setting; the server is in
``servers``, the clients are in ``clients``. Rounds, for a run of T federated steps:

    round 0      clients query their initial points and answer: release 0
    round t      clients act on release t - 1 (iteration t of the paper) and answer: release t
    round T      clients act on release T - 1; nothing would be broadcast, so nothing is asked

That makes T releases, each of which is used (the authors' loop makes T + 1). A release
that no client can use, because every client acts on its own posterior in the next round,
is not made either. TS, FTS, FTS-DE and DP-FTS are settings: nothing shared, one region,
no privacy (a choice of the run, not of the algorithm), one region with privacy.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from privbo.algorithms.thompson.exploration import Exploration
from privbo.algorithms.thompson.servers import ThompsonServer
from privbo.algorithms.thompson.settings import ThompsonSettings
from privbo.protocol.messages import Cohort, Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class DPFTSDE(ThompsonSettings):
    """Federated Thompson sampling with distributed exploration, as in the paper; its real-world setting by default.

    | In a round | what leaves a client | guarantee |
    |---|---|---|
    | with a release | one clipped vector; only noisy weighted sums become public | (epsilon, delta) of the run's plan |
    | in which every client acts alone, and of ``local()`` | nothing | nothing is released or charged |
    | of any kind | no point, no value, no own model | they stay in memory and in ``private/`` |

    Attributes:
        n_regions: P, parts of the space explored by different clients at first and
            summed with different weights. 1 is FTS. Boxes of equal volume, unless cut.
        cuts: Explicit cuts per parameter instead of equal volumes; their grid has
            ``n_regions`` boxes.
        start: Where a client's initial points lie: ``"region"`` its own, ``"everywhere"`` the
            whole space (distributed exploration without its first half).
        n_features: M, length of the shared vectors.
        clipping_norm: S, of the draws from the posterior of the features' weights that clients send; None is
            1.1 sqrt(M P), the paper's 22, and 11 for one region.
        n_init: Initial points per client.
        exploration: p_t, how often clients act on their own posterior.
        weighting: Clients' weights in the regions' sums over time.
        lengthscale: Of the shared features' kernel, in units of the cube; public.
        noise: lambda of the shared features, variance on standardised values; public.
            ``"theory"`` is the paper's 1 + 2 / T.
        kernel: Of the shared features.
        features: ``"phase"`` or ``"paired"``; see ``FourierFeatures``.
        own: How clients model their own objective.
        values: What they model: ``"standardised"`` values, at mean 0 and standard deviation 1 for every client, or
            ``"raw"`` ones under a prior of mean 0, as the authors' code does. Raw values keep the vectors of an
            objective in [0, 1] below the paper's S; standardised ones are clipped far more often.
        n_candidates: Candidates in the search for the shared vectors' maximum.
        evaluations: Most evaluations of one client over the whole run: ``n_init`` and one a round. It ends the run
            earlier than ``rounds`` where it is less; None: ``rounds`` decides.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> algorithm = pb.DPFTSDE(n_regions=2, n_init=2, exploration=pb.Exploration(power=0.5))
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: -p["x"], n_clients=20)
        >>> plan = pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=10)
        >>> plan.releases
        10
    """

    answers_together: ClassVar[bool] = True

    @staticmethod
    def paper(*, n_init: int = 10, clipping_norm: float = 22.0) -> DPFTSDE:
        """Give the paper's real-world setting (Section 5.2, Appendix B); its noise is a matter of the run.

        Own models are made of all points, so a round with a fit costs like their cube.

        Example:
            >>> import privbo as pb
            >>> pb.DPFTSDE.paper().own.max_points is None, pb.DPFTSDE.paper(clipping_norm=11.0).bound
            (True, 11.0)
        """
        own = dataclasses.replace(DPFTSDE().own, max_points=None)
        return DPFTSDE(n_init=n_init, clipping_norm=clipping_norm, values="raw", own=own)

    def local(self) -> DPFTSDE:
        """Give plain Thompson sampling: the same clients with nothing shared, exploring the whole space.

        Example:
            >>> import privbo as pb
            >>> pb.DPFTSDE().local().exploration.own_probability(1)
            1.0
        """
        return dataclasses.replace(self, n_regions=1, cuts=(), exploration=Exploration(scale=0.0))

    def server(self, setting: Setting) -> ThompsonServer:
        """Make the public side."""
        return ThompsonServer(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``."""
        from privbo.algorithms.thompson.clients import Agents  # loads torch, which the public side does not need

        return Agents(self, self.within(setting), clients=clients, evaluate=evaluate, seed=seed)
