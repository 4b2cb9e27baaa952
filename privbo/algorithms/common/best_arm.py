"""Private best-arm identification: a few arms, fresh rewards in every release, noise on their mean.

Two rules of the literature, both with central privacy for one reward, on arms that all clients pull:

- ``"top-two"`` after AdaP-TT* (Azize, Jourdan, Al Marjani, Basu) and its successor (Jourdan, Azize, arXiv:2510.17348):
  a leader and a challenger, episodes that double arm by arm, only the last episode's mean, and a stopping rule.
- ``"halving"`` after DP-BAI (Chen, Karthik, Chee, Tan, ICLR 2024, arXiv:2401.09073), of which successive halving is
  left for arms without a linear structure: phases of equal budget, only the phase's rewards, half of the arms go.

Only abstracts and introductions were at hand. The door's noise is Gaussian where theirs is Laplace, so transportation
costs and the threshold here are Gaussian ones with the noise's known variance added to that of bounded rewards.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from privbo.algorithms.common.arms import Halving, TopTwo, halving_plan
from privbo.algorithms.common.clients import SearchClients
from privbo.algorithms.common.forms import Scores
from privbo.algorithms.common.making import clients_of, server_of
from privbo.algorithms.common.search import Search
from privbo.algorithms.common.server import SearchServer
from privbo.algorithms.common.settings import CommonSettings, net
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class BestArm(CommonSettings):
    """Private best-arm identification, on the arm that is best on average over clients.

    Arms are the points of a finite space, or of a net where there are more than ``n_arms``. Every reward enters one
    release, so ``privacy.unit = "reward"`` is what it is made for: a run then costs what one release costs. For whole
    clients every release is paid for.

    .. versionadded:: 0.3.0

    Attributes:
        rule: ``"top-two"`` stops when the best arm is sure; ``"halving"`` uses a fixed budget.
        n_arms: Most arms.
        horizon: Pulls of every client.
        evaluations: Most pulls of every client where that is less than ``horizon``.
        delta_b: Probability that ``"top-two"`` stops with a wrong arm (not of privacy).
        reward_range: Declared bounds of a reward; it is clipped to them.
        alone: Nothing is shared: every client halves on its own rewards.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> space = {"model": pb.Categorical(("svm", "forest", "boosting", "ridge"))}
        >>> problem = pb.Problem(space=space, objective=lambda client, p: 0.5, n_clients=20)
        >>> privacy = pb.Privacy(epsilon=1.0, unit="reward")
        >>> pb.plan(problem, pb.BestArm(rule="halving"), privacy=privacy, rounds=10).releases
        2
    """

    type: Literal["best-arm"] = field(default="best-arm", repr=False)
    rule: Literal["top-two", "halving"] = "top-two"
    n_arms: Count = 16
    horizon: Count = 200
    delta_b: Annotated[float, Field(gt=0, lt=1)] = 0.05

    def search(self, setting: Setting) -> Search:
        """Give the search of a run.

        Raises:
            ConfigurationError: If the budget does not hold one pull of every arm.
        """
        arms, (low, high) = net(setting, self.n_arms), self.reward_range
        budget = self.horizon if self.evaluations is None else min(self.horizon, self.evaluations)
        if budget < len(arms):
            raise ConfigurationError(f"{budget} pulls do not hold one of each of {len(arms)} arms; lower n_arms")
        form = Scores(low=low, high=high)
        if self.rule == "halving" or self.alone:
            counts, pulls = halving_plan(len(arms), budget, setting.rounds)
            halving = Halving(arms=arms, pulls=pulls)
            return Search(counts=counts, form=form, propose=halving.propose, choose=halving.choose, pulls=pulls)
        rule = TopTwo(arms=arms, budget=budget, n_clients=setting.n_clients, width=high - low, delta_b=self.delta_b)
        counts = (len(arms), *[1] * (rule.episodes(setting.rounds) - 1))
        return Search(counts=counts, form=form, propose=rule.propose, choose=rule.choose)

    def local(self) -> BestArm:
        """Give the same clients with nothing shared; each halves, which needs no agreement on when to stop.

        Example:
            >>> import privbo as pb
            >>> pb.BestArm().local().alone
            True
        """
        return dataclasses.replace(self, alone=True)

    def server(self, setting: Setting) -> SearchServer:
        """Make the public side."""
        return server_of(self, self.search(setting), setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> SearchClients:  # noqa: ARG002 (the protocol's)
        """Make the private side; the clients draw nothing at random."""
        return clients_of(self, self.search(setting), setting, clients, evaluate)
