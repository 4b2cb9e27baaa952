"""What a run's output quotes, held against what its plans and its charges cost.

The lower end of the tight accountant is certified and attained by two data sets, so a number below it is
below the truth, whatever rule it was made by.
"""

import json
import math
from collections.abc import Iterator

from accountant import Adjacency, compose, from_dict, numerical
from accountant.events import Event
from tests.whole_run.worlds import Outcome


def underquoted(outcome: Outcome) -> list[str]:
    """Commands that quote less than everything planned or charged costs at least, by number and name.

    A plan counts from its ``--dry-run`` on, a charge beside the plans from the ``ledger export`` of the
    whole population that names it; every number is held to what was known when the last command ended.
    """
    plans = list(_plans(outcome))
    owed = compose([*plans, *_charges_beside(outcome)])
    found = []
    for name, quoted, delta, adjacency in _quoted(outcome, alone=len(plans) == 1):
        least = numerical.epsilon_interval(owed, delta, adjacency=adjacency).lower
        if quoted < least * (1 - 1e-9):
            found.append(f"{name}: {quoted:.6g} at delta {delta:.3g}, the least is {least:.6g}")
    return found


def _said(outcome: Outcome, *words: str) -> Iterator[tuple[str, str]]:
    """Standard output of the commands that ended well and hold these words."""
    for name, seen in outcome.seen.items():
        if ": " not in name and isinstance(seen, tuple) and seen[0] == 0 and set(words) <= set(name.split()):
            yield name, str(seen[1])


def _plans(outcome: Outcome) -> Iterator[Event]:
    for _, text in _said(outcome, "--dry-run", "--json"):
        yield from_dict(json.loads(text)["plan"]["event"])


def _charges_beside(outcome: Outcome) -> Iterator[Event]:
    """Charges, by the last export, of what is no run but published beside one."""
    *_, (_, text) = [("", ""), *_said(outcome, "export", "--population")]
    for row in map(json.loads, text.splitlines()):
        if row["run"].endswith("-norms"):
            yield from_dict(row["event"])


def _quoted(outcome: Outcome, *, alone: bool) -> Iterator[tuple[str, float, float, Adjacency]]:
    """The last report's total and, of a run alone on its ledger, its headlines, with where they hold."""
    reports = list(_said(outcome, "report", "--json"))
    for name, text in reports[-1:]:
        report = json.loads(text)
        at, adjacency = report["delta"], Adjacency(report["adjacency"])
        yield f"{name}: total", _number(report["total"]["epsilon"]), report["total"]["delta"], adjacency
        if alone:
            yield f"{name}: guaranteed", _number(report["guaranteed"]), at, adjacency
            yield f"{name}: epsilon", min(map(_number, report["epsilon"].values())), at, adjacency


def _number(value: float | None) -> float:
    return math.inf if value is None else value
