"""Who has to be trusted with a vector, and what a run costs against whom, in numbers and words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accountant.events import Adjacency, Event
from accountant.noises import SLACK, of_noises
from accountant.tightest import epsilon_table
from privbo.plans.against import Against, unknown_noises
from privbo.plans.privacy import NoPrivacy, Privacy

_WORDS: tuple[tuple[Against, str], ...] = (
    ("coalition", "the server with all guardians but one"),
    ("guardian", "one guardian"),
    ("outsiders", "the server alone, other clients and readers of broadcasts"),
)
SERVER = "the aggregating server is trusted; readers of broadcasts, other clients among them, are not"


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Price of a run against somebody who knows some of the guardians' noises.

    Attributes:
        against: Who it is, as ``privacy.against`` names it.
        who: The same in words.
        unknown: Number of noises that it does not know.
        epsilon: Upper bound.
        delta: Where it is quoted.
    """

    against: Against
    who: str
    unknown: int
    epsilon: float
    delta: float

    @property
    def words(self) -> str:
        """The price in words."""
        noises = "1 noise" if self.unknown == 1 else f"{self.unknown} noises"
        return f"against {self.who}: epsilon {self.epsilon:.4g} at delta {self.delta:.3g} ({noises})"


def exposures(
    privacy: Privacy | NoPrivacy, event: Event, delta: float, *, adjacency: Adjacency
) -> tuple[Exposure, ...]:
    """Price a run against the server with all guardians but one, one guardian, and outsiders; empty without guardians.

    Args:
        privacy: What was asked for.
        event: What was charged.
        delta: Where to quote.
        adjacency: Of the event.

    Example:
        >>> from accountant import Gaussian
        >>> privacy = Privacy(epsilon=2.0, trust="guardians", guardians=3)
        >>> found = exposures(privacy, Gaussian(noise_multiplier=4.0), 1e-5, adjacency=Adjacency.ZERO_OUT)
        >>> [(each.against, round(each.epsilon, 3)) for each in found]
        [('coalition', 0.926), ('guardian', 0.634), ('outsiders', 0.508)]
    """
    if isinstance(privacy, NoPrivacy) or privacy.trust == "server":
        return ()
    found = []
    for against, who in _WORDS:
        unknown = unknown_noises(against, privacy.n_noises)
        seen = of_noises(event, counted=privacy.n_counted, unknown=unknown)
        at = delta if unknown == privacy.n_counted else delta * (1.0 - SLACK)
        found.append(
            Exposure(
                against=against,
                who=who,
                unknown=unknown,
                epsilon=min(epsilon_table(seen, at, adjacency=adjacency).values()),
                delta=delta,
            )
        )
    return tuple(found)


def trust_text(privacy: Privacy | NoPrivacy) -> str:
    """Say who has to be trusted with a client's vector."""
    if privacy.trust == "server":
        return SERVER
    return (
        f"nobody has to be trusted with a vector, as long as one of {privacy.n_noises} guardians is honest: each "
        "holds a "
        "share that says nothing, and adds noise of its own; the server carries sealed letters"
    )


def trust_lines(trust: str, exposures: Iterable[Exposure]) -> list[str]:
    """List who has to be trusted with a vector, and the run's price against everybody else."""
    return [f"trust: {trust}", *(f"  {each.words}" for each in exposures)]
