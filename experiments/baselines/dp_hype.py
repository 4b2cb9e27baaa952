"""DP-Hype: every client evaluates all candidates and votes for its best; the noisy count decides.

Liebenow, Peinemann, Mohammadi, "DP-Hype: Federated differentially private hyperparameter search" (arXiv:2510.04902).
One client changes one entry of the count by one, so the price does not depend on the number of candidates. The noise
is Gaussian and comes from the door, which stands for the paper's secure sum; candidates, which the paper takes as
given, are a public net that fills the space, or all of a small one. Both are assumptions of ours.
"""

from __future__ import annotations

from experiments.baselines.common import Ballot, CommonSearch, Search, Votes, largest, listed, net
from privbo.protocol.messages import Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class DPHype(CommonSearch):
    """Private search for one setting that all clients use, by one release of votes (DP-Hype).

    A run has one release, whatever ``rounds`` says, and then announces the winner.

    Attributes:
        n_candidates: Points that every client evaluates.
        ballot: ``"single"``, one vote for the best point, is the paper's; ``"graded"`` is the ballot of
            ``final = "common"``, in which every good point has a share.
        reward_range: Declared bounds of a score; a ballot needs none, and nobody's score is clipped.
        evaluations: Most evaluations of one client, where that is less than ``n_candidates``.
        alone: Nothing is shared: every client keeps the best point it has seen.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=40)
        >>> pb.plan(problem, DPHype(), privacy=pb.Privacy(epsilon=2.0), rounds=1).releases
        1
    """

    n_candidates: Count = 16
    ballot: Ballot = "single"

    def search(self, setting: Setting) -> Search:
        """Give the search of a run."""
        once, count = setting.at_most(1), self.n_candidates
        points = net(setting, count if self.evaluations is None else min(count, self.evaluations))
        return Search(
            counts=self.schedule(count, count, once, len(points)),
            form=Votes(ballot=self.ballot),
            propose=listed(points),
            choose=largest,
        )
