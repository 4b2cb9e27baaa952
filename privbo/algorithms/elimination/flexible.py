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

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.flexible_clients import FlexibleCohort
from privbo.algorithms.elimination.pf_pne_server import PFPNEServer
from privbo.algorithms.elimination.settings import FlexibleSettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class FlexibleXArmed(FlexibleSettings):
    """Federated X-armed bandit with flexible personalisation.

    Every phase is one release, of mean rewards over the nodes that may be best for somebody; then a client plays the
    best node of its mixture with all pulls that are left.

    .. versionadded:: 0.3.0

    Attributes:
        own_share: alpha, the share of a client's own objective in what it maximises; 0 is the average, 1 its own.
        heterogeneity: D, largest difference between a client's objective and the average; with it no client loses the
            optimum of its mixture, except by the chances that ``c`` leaves.
        horizon, evaluations, nu1, rho, c, c1, n_children, cap, clip, widen, centre, reward_range, outside: As for
            ``PFPNE``.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=40)
        >>> algorithm = pb.FlexibleXArmed(evaluations=22)
        >>> pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=20).releases
        3
    """

    def server(self, setting: Setting) -> PFPNEServer:
        """Make the public side."""
        return PFPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> FlexibleCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return FlexibleCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every client alone from the first pull.

        Example:
            >>> import privbo as pb
            >>> pb.FlexibleXArmed(evaluations=22).local().evaluations
            22
        """
        return alone(self, c=self.c, c1=self.c1, stage2="in-phase")
