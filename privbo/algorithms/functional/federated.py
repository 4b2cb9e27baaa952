"""Federated F-LCB: many clients, a few functions, which one has the smallest mean and where.

The arms are the values of one finite parameter of the space (or there is only one arm);
the other parameters are real and live in the unit cube. Every round broadcasts an arm
and a point; clients answer with the clipped gradient and the clipped loss there in one
vector, which is one release. The release's noise is the inexact oracle's: it enters the
step sizes, the rate g, and a confidence width of its own for the loss, so

    LCB = loss - g(k, delta; s) - (s / w) sqrt(2 log(2 K T / delta)),

with s the noise per entry and w the loss's scale in the vector. Noisy values are never
replaced by the best one so far. The plan is T equal releases, whatever arms are chosen;
stopping early is allowed and the plan's epsilon is quoted.

Gradients are taken on the clients by central differences of the objective (2 n + 1
evaluations, free of privacy cost, not part of the history). Everything certified assumes
that clipping binds nobody and that everyone takes part; both are visible in an audit.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from privbo.algorithms.functional.federated_clients import FederatedCohort
from privbo.algorithms.functional.federated_server import FederatedServer
from privbo.algorithms.functional.settings import FLCBSettings
from privbo.protocol.messages import Cohort, Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class FederatedFLCB(FLCBSettings):
    """F-LCB over the values of one parameter, private for every client.

    Attributes:
        arm: Name of the categorical parameter that names the function; None: one function.
        reward_range: Declared bounds of a score (larger is better); it is clipped to them.
        gradient_bound: Largest norm of a client's gradient in unit coordinates; longer ones
            are clipped.
        loss_share: Norm of the loss's part of the vector over the gradient's.
        smoothness: L of the mean loss in unit coordinates.
        start: Where every arm starts, in every unit coordinate.
        difference: Half-width of the central differences.
        delta_b: Failure probability of one rate (not of privacy); None is 1/(K T^2).
        rates: ``"certified"`` or ``"printed"`` (drops constants; a heuristic).
        tolerance: Stop when the selected arm's minimum is surely within it of the best.
        evaluations: Most evaluations of one client over the whole run; it takes so many rounds less. None: ``rounds``
            decides, with 2 n + 1 evaluations in each for n free parameters.
        share: ``"gradients"``, or ``"nothing"``: each client for itself.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> space = {"model": pb.Categorical(("svm", "forest")), "x": pb.Real(0, 1)}
        >>> problem = pb.Problem(space=space, objective=lambda client, p: 1 - p["x"], n_clients=20)
        >>> plan = pb.plan(problem, pb.FederatedFLCB(arm="model"), privacy=pb.Privacy(epsilon=2.0), rounds=6)
        >>> plan.releases
        6
    """

    answers_together: ClassVar[bool] = True

    @property
    def caveat(self) -> str | None:
        """The rates' caveat; the other assumptions of the bounds are named above, and an audit shows them."""
        if self.rates == "certified":
            return None
        return "rates='printed' drops constants of the bounds, so the best arm may be given up early: a heuristic."

    @property
    def is_certified(self) -> bool:
        """False: the bounds assume that clipping binds nobody; they do not fix its norm."""
        return False

    def server(self, setting: Setting) -> FederatedServer:
        """Make the public side."""
        return FederatedServer(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; clients draw nothing at random, so ``seed`` is not used."""
        return FederatedCohort(self, self.within(setting), clients=clients, evaluate=evaluate)

    def local(self) -> FederatedFLCB:
        """Give the control: every client runs F-LCB on its own function; nothing is shared."""
        return dataclasses.replace(self, share="nothing")
