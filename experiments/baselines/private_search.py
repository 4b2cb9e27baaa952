"""Private random and Sobol search: a list of common points, the noisy mean score of each, and the best mean wins.

This is what a practitioner does by hand. The list is public and fixed before the run; rounds only tell how many points
clients evaluate before they answer, and cost nothing: whatever the rounds, every point's mean has the same noise.
"""

from __future__ import annotations

from typing import Literal

from experiments.baselines.common import CommonSearch, Scores, Search, largest, listed, net, random_points
from privbo.protocol.messages import Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class PrivateSearch(CommonSearch):
    """Private random or Sobol search for one setting that all clients use.

    Every client evaluates the same few points in a round and answers with its clipped scores; the noisy means
    are released, and in the end the point with the largest one is announced.

    | In a round | what leaves a client | guarantee |
    |---|---|---|
    | of a shared run | one vector of clipped scores; the noisy mean becomes public | (epsilon, delta) of the plan |
    | of ``local()`` | nothing | nothing is released or charged |

    Attributes:
        n_candidates: Points of a round.
        sampler: ``"sobol"``, a shifted net, or ``"random"``.
        reward_range: Declared bounds of a score; it is clipped to them.
        evaluations: Most evaluations of one client over the whole run; None: ``rounds`` times ``n_candidates``.
        alone: Nothing is shared: every client keeps the best point it has seen.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=40)
        >>> pb.plan(problem, PrivateSearch(evaluations=18), privacy=pb.Privacy(epsilon=2.0), rounds=9).releases
        5
    """

    n_candidates: Count = 4
    sampler: Literal["sobol", "random"] = "sobol"

    def search(self, setting: Setting) -> Search:
        """Give the search of a run."""
        most = self.n_candidates * setting.rounds
        wanted = most if self.evaluations is None else min(most, self.evaluations)
        points = net(setting, wanted) if self.sampler == "sobol" else random_points(setting, wanted)
        low, high = self.reward_range
        return Search(
            counts=self.schedule(self.n_candidates, self.n_candidates, setting, len(points)),
            form=Scores(low=low, high=high),
            propose=listed(points),
            choose=largest,
        )
