"""One evaluation of every client before a run exists: does the objective work at all? PRIVATE.

What it shows is for the operator of the clients, and beginning the run afterwards is their decision. No file, no
charge and no message stands before it. By itself it stops a run only where no client has a value.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from accountant.verify.text import shown
from privbo.protocol.errors import ConfigurationError, RehearsalError
from privbo.protocol.messages import Algorithm, Array, FloatArray, IntArray
from privbo.protocol.problem import Evaluator, Problem, Rows
from privbo.protocol.processes import watched_interrupts
from privbo.protocol.space import Space
from privbo.runs.clients import WorkerSetup
from privbo.runs.in_process import InProcess
from privbo.runs.states import EvaluationJournal

_TRIED, _FIRST = 4096, 16  # points among which one keeps the constraints; places in a queue that are looked at
_KIND = re.compile(r"[A-Za-z_]\w*(?=:|$)")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """PRIVATE: what one evaluation of every client shows; no epsilon covers it.

    Attributes:
        n_clients: Clients that evaluated.
        failures: Why a client has no value, by its number; scores that were all clipped, and a reward outside the
            algorithm's ``reward_range``, make none.
        dropped: Why something that a client brought along, by ``earlier`` or ``enqueued``, is left out.
        seconds: Of one evaluation, on average.
        made: The evaluations that a run takes over.
        clipped: Their scores that were clipped, as ``Evaluator.on_clipped`` has them.

    .. versionadded:: 0.3.0

    Example:
        >>> Rehearsal(n_clients=20, failures={2: "KeyError: 'Dose'"}, seconds=0.5)
        <Rehearsal: 1 of 20 clients have no value (KeyError 1); 0.5 s per evaluation>
    """

    n_clients: int
    failures: Mapping[int, str] = field(default_factory=dict)
    dropped: Mapping[int, str] = field(default_factory=dict)
    seconds: float
    made: Rows | None = None
    clipped: tuple[tuple[int, int, int], ...] = ()

    @property
    def kinds(self) -> dict[str, int]:
        """Count the clients without a value by the type of their error, the most frequent first."""
        found = (_KIND.match(reason) for reason in self.failures.values())
        return dict(Counter("no usable value" if kind is None else kind[0] for kind in found).most_common())

    @property
    def has_values(self) -> bool:
        """Whether some client has a value."""
        return len(self.failures) < self.n_clients

    @property
    def text(self) -> str:
        """State how many clients have no value, and the types of their errors; no client's number."""
        dropped = f"; points that {len(self.dropped)} brought along are left out" * bool(self.dropped)
        if not self.failures:
            return f"each of {self.n_clients} clients has a value{dropped}"
        found = f"{len(self.failures)} of {self.n_clients} clients have no value"
        if not self.has_values:
            found = f"none of {self.n_clients} clients has a value"
        return shown(f"{found} ({', '.join(f'{kind} {count}' for kind, count in self.kinds.items())}){dropped}")

    def __repr__(self) -> str:
        return f"<Rehearsal: {self.text}; {self.seconds:.3g} s per evaluation>"

    def require_value(self) -> None:
        """Refuse a run that would be charged for nothing.

        Raises:
            RehearsalError: If no client has a value.
        """
        if not self.has_values:
            raise RehearsalError(
                f"rehearsal: {self.text}; no run was made, and nothing was charged or written. "
                "pb.check(problem).failures, or privbo check CONFIG --show-private, says who and why; rehearse=False, "
                "or --no-rehearsal, begins all the same"
            )

    def hand_over(self, journal: EvaluationJournal, evaluate: Evaluator, said: str) -> None:
        """Give a new run the evaluations that its clients have made already, their failures and what they said."""
        print(said, end="")
        if self.made is not None:
            journal.add(self.made)
        evaluate.errors |= self.failures
        for client, reason in self.failures.items():
            if evaluate.on_failure is not None:
                evaluate.on_failure(client, reason)
        if evaluate.on_clipped is not None:
            for counts in self.clipped:
                evaluate.on_clipped(*counts)


def check(
    problem: Problem,
    *,
    clients: npt.ArrayLike | None = None,
    evaluation_seconds: float | None = None,
    algorithm: Algorithm | None = None,
) -> Rehearsal:
    """Evaluate every client once, in the middle of the space: PRIVATE, and nothing is charged, written or sent.

    Where the middle does not keep the space's constraints, another point is taken.

    Args:
        problem: The clients' search space and objectives.
        clients: Numbers of those that evaluate; by default all.
        evaluation_seconds: Seconds that one evaluation may take; it then has a process of its own, which is killed
            when they are over, and counts as failed.
        algorithm: What would be run: no value may be outside its ``reward_range``.

    Returns:
        Who has no value and why, and how long an evaluation takes.

    Raises:
        ConfigurationError: If the problem's trials are asked and told, so that nothing can be called, or a client is
            none.

    .. versionadded:: 0.3.0

    Example:
        >>> import privbo as pb
        >>> def score(client, params):
        ...     return params["Dose"] if client == 2 else params["dose"]
        >>> problem = pb.Problem(space={"dose": pb.Real(0, 1)}, objective=score, n_clients=20)
        >>> pb.check(problem).text
        '1 of 20 clients have no value (KeyError 1)'
        >>> pb.check(problem).failures
        {2: "KeyError: 'Dose'"}
    """
    everyone = np.arange(problem.n_clients)
    asked = everyone if clients is None else np.asarray(clients)
    if not np.isin(asked, everyone).all():
        raise ConfigurationError(f"clients={clients!r}: clients are 0..{len(everyone) - 1}")
    with watched_interrupts() as stopped:
        evaluate = problem.evaluator(stopped=stopped, evaluation_seconds=evaluation_seconds)
        for client in asked.tolist():
            evaluate.earlier(client)
        for place in range(_FIRST):
            evaluate.chosen(asked, np.zeros((len(asked), problem.search_space.n_dims)), place)
        dropped = dict(evaluate.errors)
        evaluate.errors.clear()
        return replace(_in_the_middle(evaluate, asked, algorithm), dropped=dropped)


def middle(space: Space) -> FloatArray:
    """Give the middle of a space ``(n_dims,)``, or another point where that does not keep the constraints."""
    tried = np.random.default_rng(0).random((_TRIED if space.constraints else 1, space.n_dims))
    tried[0] = 0.5
    points = space.snap(tried)
    return np.asarray(points[np.argmax(space.allows(points))])


def rehearse(setup: WorkerSetup, evaluate: Evaluator, made: Callable[..., InProcess]) -> Rehearsal:
    """Let every client of a run that does not exist yet evaluate what it would evaluate first.

    Where clients evaluate nothing in the first round, they do so in the middle of the space.

    Args:
        setup: The run that is to be.
        evaluate: Calls the objectives.
        made: Makes the clients, as ``in_process`` does.

    Returns:
        What it shows, with the evaluations that the run takes over.

    Raises:
        RehearsalError: If no client has a value.
    """
    ask, clients = setup.spec.server(setup.setting).ask(), made(setup, None, evaluate)

    def first() -> Rows:
        try:
            return clients.rehearse(ask.broadcast) if ask is not None else clients.journal.known(0, 0, 0)
        finally:
            clients.end()

    found = _rehearsed(evaluate, setup.spec.algorithm, first)
    if not found.n_clients:
        found = _in_the_middle(evaluate, np.arange(setup.setting.n_clients), setup.spec.algorithm)
    found.require_value()
    return found


def _in_the_middle(evaluate: Evaluator, clients: IntArray, algorithm: Algorithm | None) -> Rehearsal:
    evaluate.rehearses, evaluate.memory = False, None
    units = np.tile(middle(evaluate.problem.search_space), (len(clients), 1))
    return _rehearsed(evaluate, algorithm, lambda: {"client": clients, "value": evaluate(clients, units)})


def _rehearsed(
    evaluate: Evaluator, algorithm: Algorithm | None, evaluated: Callable[[], Rows | dict[str, Array]]
) -> Rehearsal:
    """What evaluations show; a run takes rows over."""
    clipped: list[tuple[int, int, int]] = []
    evaluate.on_clipped = lambda *counts: clipped.append(counts)
    started = time.perf_counter()
    made = evaluated()
    seconds = time.perf_counter() - started
    clients, values = made["client"], made["value"]
    lost = {client for client, changed, scored in clipped if changed == scored}
    low, high = getattr(algorithm, "reward_range", (-np.inf, np.inf))
    outside = np.isfinite(values) & ~((low <= values) & (values <= high))
    for client, value in zip(clients[outside].tolist(), values[outside].tolist(), strict=True):
        lost.add(client)
        evaluate.note(client, f"a reward of {value:g} is clipped to reward_range={(low, high)}; declare what it keeps")
    valued = set(clients[np.isfinite(values)].tolist()) - lost
    failures = {client: reason for client, reason in sorted(evaluate.errors.items()) if client not in valued}
    n_clients = len(valued) + len(failures)
    return Rehearsal(
        n_clients=n_clients,
        failures=failures,
        seconds=seconds / max(n_clients, 1),
        made=None if isinstance(made, dict) else made,
        clipped=tuple(clipped),
    )
