"""The invariants as checks of any algorithm.

    from privbo.testing import check_algorithm

    check_algorithm(MyAlgorithm())

Every check plays small runs through the real door with seeded noise and raises
``ConformanceError`` where the algorithm breaks a rule of ``privbo.protocol.messages``.

| check | rule |
|---|---|
| ``runs_to_its_end`` | every planned release is made, and nothing else is charged |
| ``stops_at_its_budget`` | a target epsilon is met from below and nothing more fits |
| ``learns`` | every client has a recommended point inside the space |
| ``repeats_under_a_seed`` | equal seeds give equal runs, other seeds other runs |
| ``draws_secret_noise_once`` | secure noise never repeats |
| ``resumes`` | a run stopped after each round ends as if it had not been stopped |
| ``survives_absences`` | clients that are away change neither the noise nor the number of releases |
| ``goes_on_after_missed_rounds`` | a client that was not there for a round answers the later ones |
| ``survives_hostile_answers`` | malformed vectors are absences |
| ``keeps_its_sensitivity`` | one unit moves a release by no more than stated |
| ``keeps_its_unit_bound`` | another reward or record moves a vector by ``unit_bound`` at most, a reward only one |
| ``is_steered_by_releases`` | a server told the releases alone asks what was asked in the run, however often |
| ``derives_its_requests`` | a server told nothing derives every request from its broadcast |
| ``hides_vectors_from_its_server`` | the public side reaches no array that holds a client's vector as it was sent |
| ``answers_twice_alike`` | a round asked twice is answered the same, without new evaluations |
| ``splits_into_cohorts`` | a client alone behaves as the same client in a large cohort |
| ``snapshots_everything`` | a restored cohort goes on as the one it was taken of |
| ``survives_failing_objectives`` | an objective that raises or returns NaN stops no other client |
| ``keeps_clients_apart`` | whatever one client's objective returns or raises, the others answer alike |
| ``acts_or_costs_nothing`` | releases can change a point or the common answer, or are not made and not charged |
| ``has_a_local_control`` | ``local()`` releases nothing and costs nothing |
| ``has_a_zeroed_control`` | the noise-only control releases noise alone |
"""

from __future__ import annotations

from accountant.errors import PrivacyError
from privbo.protocol.common import Final
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Algorithm, UnitName
from privbo.testing.boundary import keeps_its_unit_bound
from privbo.testing.checks import CHECKS
from privbo.testing.subject import ConformanceError, Subject, bumps, toy_problem

__all__ = ["CHECKS", "ConformanceError", "Subject", "bumps", "check_algorithm", "toy_problem"]


def check_algorithm(
    algorithm: Algorithm, *, unit: UnitName = "client", rounds: int = 4, final: Final | None = None
) -> tuple[str, ...]:
    """Check an algorithm against the invariants: play every check on a small problem of seven clients.

    Args:
        algorithm: The algorithm's settings, as ``pb.run`` takes them.
        unit: Unit of privacy, ``"client"``, ``"record"`` or ``"reward"``.
        rounds: Length of the runs; enough for at least one release.
        final: ``"common"`` for runs that end with a common setting.

    Returns:
        Names of the checks that were played, all of which hold; ``keeps_its_unit_bound`` is among them only where
        the unit is smaller than a client.

    Raises:
        ConformanceError: Naming the check and the rule that is broken.
        ConfigurationError: If it is no algorithm, or refuses its settings.

    Example:
        >>> import privbo as pb
        >>> from privbo.testing import CHECKS, Subject
        >>> CHECKS["has_a_local_control"](Subject(algorithm=pb.FederatedFLCB()))
    """
    subject = Subject(algorithm=algorithm, unit=unit, rounds=rounds, final=final)
    played = {name: check for name, check in CHECKS.items() if unit != "client" or check is not keeps_its_unit_bound}
    for name, check in played.items():
        try:
            check(subject)
        except ConfigurationError:
            raise
        except Exception as error:  # whatever an algorithm of one's own raises, or the ledger refuses
            kind = "" if isinstance(error, PrivacyError) else f"{type(error).__name__}: "
            raise ConformanceError(f"{name}: {kind}{error}") from error
    return tuple(played)
