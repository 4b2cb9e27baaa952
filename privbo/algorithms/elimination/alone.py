"""PE: clients that eliminate alone."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar, Literal

from privbo.algorithms.elimination.alone_server import AloneServer, first_alone
from privbo.algorithms.elimination.personal_clients import PersonalCohort
from privbo.algorithms.elimination.settings import AloneTail, PersonalSettings, TreeSettings
from privbo.protocol.messages import Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class PersonalElimination(PersonalSettings):
    """Elimination by every client alone (PE); nothing is ever sent.

    Attributes:
        horizon, evaluations, nu1, rho, c, c1, n_children, tail, reward_range, outside: As for ``PFPNE``.
        stage2: ``"printed"``, ``"in-phase"`` or ``"optimistic"``.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    answers_together: ClassVar[bool] = True

    def server(self, setting: Setting) -> AloneServer:
        """Make the public side: a clock."""
        return AloneServer(first_alone(self.confidence(setting.n_clients), self.partition(setting), 0, self.stage2))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side."""
        return PersonalCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give itself: nothing is shared."""
        return self


def alone(
    shared: TreeSettings,
    *,
    c: float,
    c1: float = 1.0,
    stage2: Literal["printed", "in-phase", "optimistic"] = "optimistic",
    tail: AloneTail = "commit",
) -> PersonalElimination:
    """Give the clients of a shared elimination alone, with the same tree, horizon and rewards."""
    common = {each.name: getattr(shared, each.name) for each in fields(TreeSettings)}
    return PersonalElimination(**common, c=c, c1=c1, stage2=stage2, tail=tail)
