"""The law as checks that anybody's algorithm can be held to.

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
| ``resumes`` | a run stopped after any round ends as if it had not been stopped |
| ``survives_absences`` | clients that are away change neither the noise nor the number of releases |
| ``survives_hostile_answers`` | malformed vectors are absences |
| ``keeps_its_sensitivity`` | one unit moves a release by no more than stated |
| ``hides_vectors_from_its_server`` | the public side never holds a client's vector |
| ``answers_twice_alike`` | a round asked twice is answered the same, without new evaluations |
| ``splits_into_cohorts`` | a client alone behaves as the same client in a large cohort |
| ``snapshots_everything`` | a restored cohort goes on as the one it was taken of |
| ``survives_failing_objectives`` | an objective that raises or returns NaN stops nobody |
| ``has_a_local_control`` | ``local()`` releases nothing and costs nothing |
| ``has_a_zeroed_control`` | with the clients' sum zeroed only noise is released |
"""

from __future__ import annotations

from privbo.protocol.messages import Algorithm, UnitName
from privbo.testing.checks import CHECKS
from privbo.testing.subject import ConformanceError, Subject, bumps, toy_problem

__all__ = ["CHECKS", "ConformanceError", "Subject", "bumps", "check_algorithm", "toy_problem"]


def check_algorithm(algorithm: Algorithm, *, unit: UnitName = "client", rounds: int = 4) -> None:
    """Hold an algorithm to the law: play every check on a small problem of seven clients.

    Args:
        algorithm: The algorithm's settings, as ``pb.run`` takes them.
        unit: Unit of privacy, ``"client"`` or ``"reward"``.
        rounds: Length of the runs; enough for at least one release.

    Raises:
        ConformanceError: Naming the rule that is broken.
        ConfigurationError: If it is no algorithm, or refuses its settings.

    Example:
        >>> import privbo as pb
        >>> from privbo.testing import CHECKS, Subject
        >>> CHECKS["has_a_local_control"](Subject(algorithm=pb.FederatedFLCB()))
    """
    subject = Subject(algorithm=algorithm, unit=unit, rounds=rounds)
    for check in CHECKS.values():
        check(subject)
