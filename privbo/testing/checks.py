"""The checks of ``check_algorithm``, each a function of a ``Subject``: of whole runs, of clients, and all by name."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from privbo.protocol.errors import RunError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Value
from privbo.runs.altered import AlteredCohort
from privbo.runs.offer import is_optional, useful
from privbo.runs.record import Record, Round
from privbo.testing.boundary import derives_its_requests, holds_a_row_of, is_steered_by_releases, keeps_its_unit_bound
from privbo.testing.subject import N_CLIENTS, NO_PRIVACY, SEED, Subject, bumps, require, same, toy_clients, values_of

_LITTLE, _VERY_MUCH = 0.02, 4e3  # noise multipliers
_SEEDS = (SEED, SEED + 1, SEED + 2)  # noise alone sometimes announces the same point as its sums

HOSTILE: Mapping[str, Callable[[FloatArray], object]] = {
    "nan": lambda a: np.full_like(a, np.nan),
    "infinite": lambda a: np.full_like(a, np.inf),
    "huge": lambda a: np.full_like(a, 1e300),
    "denormal": lambda a: np.full_like(a, 5e-324),
    "wrong shape": lambda a: np.zeros((len(a), a.shape[1] + 1)),
    "wrong rank": lambda a: a.ravel(),
    "too many rows": lambda a: np.vstack([a, a]),
    "integers": lambda a: np.ones(a.shape, dtype=np.int64),
    "complex": lambda a: a + 1j,
    "objects": lambda a: np.full(a.shape, "x", dtype=object),
    "nothing": lambda _: None,
    "empty": lambda _: np.zeros((0, 0)),
}


class _StoppedError(Exception):
    """A run was stopped on purpose."""


def runs_to_its_end(subject: Subject) -> None:
    """Every planned release is made, and nothing else is charged."""
    record, plan = subject.play(), subject.plan()
    entries = record.ledger.entries(record.run_id)
    require(
        len(entries) == len(record.releases) == plan.releases > 0,
        f"a run must make every release of its plan, at least one: {len(record.releases)} of {plan.releases} were made "
        f"and {len(entries)} charged; a control that plans none is checked with its algorithm",
    )
    require(
        record.ledger.event(record.run_id) == plan.event,
        "a run must be charged the events of its plan; it was charged others",
    )
    require(
        [r.sequence for r in record.releases] == [e.sequence for e in entries],
        "releases must follow their charges in order; they did not",
    )
    require(record.ledger.verify().ok, "the ledger of a run must verify; it did not")
    require(not record.failures, f"no client may fail on a harmless objective; these did: {dict(record.failures)}")


def stops_at_its_budget(subject: Subject) -> None:
    """A target epsilon is met from below, and one more release does not fit."""
    privacy = dataclasses.replace(subject.privacy(), noise_multiplier=None, epsilon=2.0)
    record = subject.play(privacy=privacy)
    require(1.99 < record.epsilon() <= 2.0, f"a target epsilon of 2 must cost 1.99 to 2; it cost {record.epsilon()}")
    if not record.ledger.policy.disjoint:  # else one more release of other rewards costs nothing more
        last = record.ledger.entries()[-1]
        require(
            not record.ledger.check(last.event).allowed,
            "the budget must refuse one release more than planned; it allowed it",
        )


def learns(subject: Subject) -> None:
    """Every client has a recommended point inside the space, and its best score never falls."""
    record = subject.play()
    history = record.clients
    require(
        history.values.shape[0] == N_CLIENTS,
        f"history() must have {N_CLIENTS} rows, one per client; it has {history.values.shape[0]}",
    )
    inside = (history.recommended >= 0) & (history.recommended <= 1)
    require(inside.all(), "recommended points must lie in the unit cube [0, 1]; one lies outside")
    require(not (np.diff(record.best_so_far()) < -1e-12).any(), "the best score so far must never fall; it fell")


def repeats_under_a_seed(subject: Subject) -> None:
    """Equal seeds give equal runs, other seeds other runs."""
    first, again, other = subject.play(), subject.play(), subject.play(seed=4)
    require(same(values_of(first), values_of(again)), "equal seeds must give equal releases; they differed")
    require(same(first.clients.values, again.clients.values), "equal seeds must give equal evaluations; they differed")
    require(not same(values_of(first), values_of(other)), "another seed must give other releases; they were equal")


def draws_secret_noise_once(subject: Subject) -> None:
    """Secure noise never repeats, whatever the seed."""
    secure = dataclasses.replace(subject.privacy(), noise="secure")
    with tempfile.TemporaryDirectory() as folder:
        first, again = (subject.play(Path(folder) / name, privacy=secure) for name in ("a", "b"))
        require(
            not same(first.releases[0].values, again.releases[0].values),
            "secure noise must never repeat; two runs released the same values",
        )


def resumes(subject: Subject) -> None:
    """A run stopped after each of its rounds ends as if it had not been stopped; another run is refused."""
    whole = subject.play()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "run"
        for index in range(subject.rounds):

            def stop(event: Round, index: int = index) -> None:
                if event.index == index:
                    raise _StoppedError

            with contextlib.suppress(_StoppedError):
                subject.play(home, resume=index > 0, on_round=stop)
        resumed, stopped = subject.play(home, resume=True), "a run that is stopped after every round and resumed"
        require(same(values_of(resumed), values_of(whole)), f"{stopped} must make the same releases; they differed")
        require(same(resumed.clients.values, whole.clients.values), f"{stopped} must evaluate the same; it did not")
        charges, planned = len(resumed.ledger.entries()), len(whole.ledger.entries())
        require(charges == planned, f"{stopped} must make {planned} charges; it made {charges}")
        try:
            subject.play(home, resume=True, rounds=subject.rounds + 1)
        except RunError:
            return
    require(False, "a run with another number of rounds must not be resumed; it was")


def survives_absences(subject: Subject) -> None:
    """Clients that are away change neither the noise nor the number of releases."""
    plain = subject.play(privacy=subject.subsampled())
    for share in (0.0, 0.3, 1.0):

        def drop(answers: FloatArray, round_: int, share: float = share) -> FloatArray:
            answers[np.random.default_rng([9, round_]).random(len(answers)) < share] = np.nan
            return answers

        record = subject.play(privacy=subject.subsampled(), algorithm=subject.spoiled(drop))
        require(
            len(record.releases) == len(plain.releases),
            "clients that are away must not change the number of releases; they did",
        )
        # A record's noise follows the number of nodes, which may differ, and so does the grid's share of a reward's.
        power = 0.5 if subject.unit == "record" else 0.0
        ours, theirs = ([r.noise_stddev / r.values.shape[1] ** power for r in run.releases] for run in (record, plain))
        tolerance = 0.0 if subject.unit == "client" else 1e-4
        require(
            np.allclose(ours, theirs, rtol=tolerance, atol=0.0),
            "clients that are away must not change the noise; they did",
        )
        require(np.isfinite(values_of(record)).all(), "releases must be finite; one is not")
        if share == 1.0:
            _only_noise(record.releases[0].values, record.releases[0].noise_stddev)


def _only_noise(values: FloatArray, stddev: float) -> None:
    """Eight standard deviations: a false alarm in less than one of 10^12 entries."""
    require(np.abs(values).max() < 8 * stddev, "where no client answers, noise alone must be released; more was")


def goes_on_after_missed_rounds(subject: Subject) -> None:
    """A client that was not there for a round answers the later ones."""
    for missed in range(-1, subject.rounds):
        cohort, asked = subject.cohort(), list[int]()
        for index, ask in subject.asks():
            if index != missed and (missed >= 0 or index % 2):
                answers = np.asarray(cohort.respond(ask.broadcast))
                if ask.request is not None:
                    asked.append(int(np.isfinite(answers).any(axis=1).sum()))
        what = "every other round" if missed < 0 else f"round {missed}"
        require(not asked or max(asked) > 0, f"a client that missed {what} must answer later rounds; it did not")
        require(
            len(cohort.history().values) == N_CLIENTS, f"a client that missed {what} must have a history; it has none"
        )


def survives_hostile_answers(subject: Subject) -> None:
    """Malformed vectors are absences: the run makes its releases, all of them finite."""
    plan = subject.plan()
    for name, how in HOSTILE.items():

        def spoil(answers: FloatArray, round_: int, how: Callable[[FloatArray], object] = how) -> FloatArray:
            return how(answers) if round_ % 2 == 0 else answers  # type: ignore[return-value]  # hostile on purpose

        record = subject.play(algorithm=subject.spoiled(spoil))
        require(
            len(record.releases) == plan.releases, f"malformed answers ({name}) must stop no release; one is missing"
        )
        finite = np.isfinite(values_of(record)).all()
        require(finite, f"malformed answers ({name}) must not enter a release; one is not finite")


def keeps_its_sensitivity(subject: Subject) -> None:
    """Moves the first release by at most its sensitivity, under the same noise, and not by much less.

    One client's first answer is replaced by a huge vector, or moved as far as one reward or record can.
    """
    request = next(iter(subject.server().plan()))

    def silence(answers: FloatArray, _: int) -> FloatArray:
        answers[2] = 0.0
        return answers

    def move(answers: FloatArray, _: int) -> FloatArray:
        answers[2] = 1e6 if request.unit_bound is None else request.unit_bound / np.sqrt(request.dim)
        return answers

    first, second = (subject.play(algorithm=subject.spoiled(how)).releases[0].values for how in (move, silence))
    sensitivity = subject.plan().mechanism(request).sensitivity()
    moved = float(np.linalg.norm(first - second))
    require(
        0.25 * sensitivity < moved <= sensitivity,  # this client need not be the one that counts most
        f"one {subject.unit} must move a release by at most its sensitivity {sensitivity:.6g}, and by more than a "
        f"quarter of it; it moved it by {moved:.6g}",
    )


def hides_vectors_from_its_server(subject: Subject) -> None:
    """The public side never holds a client's vector."""
    answers: list[FloatArray] = []

    def keep(sent: FloatArray, _: int) -> FloatArray:
        answers.append(sent)
        return sent.copy()

    algorithm, servers = subject.watched(on_cohort=lambda cohort: AlteredCohort(cohort=cohort, alter=keep))
    subject.play(algorithm=algorithm)
    require(any(np.any(answer) for answer in answers), "some client must answer with more than zeros; none did")
    reached = [(watched.server, watched.told) for watched in servers]
    require(
        not any(holds_a_row_of(reached, a) for a in answers),
        "the server must hold no client's vector; it holds a client's vector",
    )


def has_a_local_control(subject: Subject) -> None:
    """``local()`` releases nothing and costs nothing."""
    record = subject.play(algorithm=subject.algorithm.local(), privacy=NO_PRIVACY)
    require(
        record.releases == () and record.epsilon() == 0.0, "local() must release nothing and cost nothing; it did not"
    )
    require(np.isfinite(record.clients.values).any(), "clients of local() must evaluate; none has a value")


def has_a_zeroed_control(subject: Subject) -> None:
    """The noise-only control releases noise alone."""
    release = subject.play(control="zeroed").releases[0]
    _only_noise(release.values, release.noise_stddev)


class _CancelledError(BaseException):
    """As asyncio's: no Exception."""


def _raise(error: BaseException) -> object:
    raise error


BAD_VALUES: Mapping[str, Callable[[], object]] = {
    "the largest number": lambda: 1.7e308,
    "the smallest number": lambda: -1.7e308,
    "a large number": lambda: -1e100,
    "a denormal number": lambda: 5e-324,
    "a reward above its range": lambda: 1.01,
    "infinity": lambda: float("-inf"),
    "text": lambda: "a score",
    "nothing": lambda: None,
    "a complex number": lambda: 1j,
    "an array": lambda: np.zeros(3),
    "an error": lambda: _raise(ValueError("secret")),
    "no memory": lambda: _raise(MemoryError()),
    "an exit": lambda: _raise(SystemExit(3)),
    "a cancellation": lambda: _raise(_CancelledError()),
}


def answers_twice_alike(subject: Subject) -> None:
    """A round asked twice is answered the same, without new evaluations."""
    calls: list[int] = []

    def evaluate(clients: IntArray, units: FloatArray) -> FloatArray:
        calls.append(len(clients))
        return bumps(clients, units)

    ask, cohort = subject.server().ask(), subject.cohort(evaluate=evaluate)
    if ask is None:
        require(False, "a run must have at least one round; ask() gave None at once")
        return
    first, count = cohort.respond(ask.broadcast), len(calls)
    require(
        same(cohort.respond(ask.broadcast), first),
        "a round that is asked twice must get the same answer; it got another",
    )
    require(len(calls) == count, "a round that is asked twice must evaluate nothing again; it did")


def splits_into_cohorts(subject: Subject) -> None:
    """A client alone behaves as the same client in a large cohort."""
    everyone, single = subject.cohort(), subject.cohort([4])
    for index, ask in subject.asks():
        whole, alone = everyone.respond(ask.broadcast), single.respond(ask.broadcast)
        alike = np.allclose(alone[0], whole[4], rtol=1e-6, atol=1e-9, equal_nan=True)
        require(alike, f"round {index}: client 4 must answer alone as in the cohort of all; it answered otherwise")
    ours, theirs = single.history().values[0], everyone.history().values[4]
    require(
        np.allclose(ours, theirs, rtol=1e-6, equal_nan=True),
        "client 4 must evaluate alone as in the cohort of all; it evaluated otherwise",
    )


def snapshots_everything(subject: Subject) -> None:
    """A restored cohort goes on as the one it was taken of."""
    cohorts = [subject.cohort(), subject.cohort()]
    for _, ask in subject.asks():
        cohorts[0].respond(ask.broadcast)
        cohorts[1].restore(dict(cohorts[0].snapshot()))
        cohorts.reverse()  # the restored one goes on
    for name, array in cohorts[0].snapshot().items():
        require(
            np.array_equal(array, cohorts[1].snapshot()[name], equal_nan=array.dtype.kind == "f"),
            f"snapshot() and restore() must keep {name!r}; it differs",
        )


def acts_or_costs_nothing(subject: Subject) -> None:
    """What is charged can change a client's point or the common answer; what can't is given up and costs nothing.

    Under little noise releases move something. Where an algorithm may leave them out, it does under very much.
    """
    algorithm = useful(subject.algorithm)

    def played(noise_multiplier: float, seed: int = SEED, control: str | None = None) -> Record:
        privacy = dataclasses.replace(subject.privacy(), noise_multiplier=noise_multiplier)
        return subject.play(algorithm=algorithm, privacy=privacy, final=subject.final, seed=seed, control=control)

    charged = len(played(_VERY_MUCH).ledger.entries()) - (subject.final is not None)
    require(
        not (charged and is_optional(algorithm)),
        f"no release that noise drowns may be charged; {charged} were under a noise multiplier of {_VERY_MUCH:g}",
    )
    differ = any(not same(_points(played(_LITTLE, seed)), _points(played(_LITTLE, seed, "zeroed"))) for seed in _SEEDS)
    require(
        differ or not played(_LITTLE).ledger.entries(),
        f"under a noise multiplier of {_LITTLE:g} a run is its noise-only control, at every seed: its releases "
        "cost something and change nothing, and must not be made",
    )


def _points(record: Record) -> FloatArray:
    """Where a run's clients evaluated, what they would use, and what was announced."""
    history, common = record.clients, record.common
    chosen = [] if common is None else [record.spec.problem.search_space.encode(common.params)]
    return np.concatenate([array.ravel() for array in (history.units, history.recommended, *chosen)])


def survives_failing_objectives(subject: Subject) -> None:
    """An objective that raises or returns NaN stops no other client."""

    def moody(client: int, params: Mapping[str, Value]) -> float:
        if client == 1:
            raise ValueError("secret of client 1")
        if client == 2:
            return float("nan")
        return _score(client, params)

    record = subject.play(problem=toy_clients(moody, subject.unit))
    require(np.isnan(record.clients.values[1]).all(), "a failed evaluation must count as NaN; it has a value")
    require(np.isfinite(record.clients.values[0]).any(), "other clients must go on where one fails; they did not")
    require(np.isfinite(values_of(record)).all(), "releases must be finite; one is not")


def _score(client: int, params: Mapping[str, Value]) -> float:
    return float(bumps(np.array([client]), np.array([[float(params["x"]), 0.5]]))[0])


def keeps_clients_apart(subject: Subject) -> None:
    """Whatever one client's objective returns or raises, the others answer as if it had been well."""
    whole = _answers_of_others(subject, None)
    for name, bad in BAD_VALUES.items():
        require(
            same(_answers_of_others(subject, bad), whole),
            f"a client whose objective gives {name} must not move another client's answers; it did",
        )


def _answers_of_others(subject: Subject, bad: Callable[[], object] | None) -> FloatArray:
    """Answers of everyone but client 2, who evaluates what ``bad`` gives."""

    def objective(client: int, params: Mapping[str, Value]) -> float:
        if client == 2 and bad is not None:
            return cast("float", bad())
        return _score(client, params)

    problem = toy_clients(objective, subject.unit)
    cohort = subject.spec().cohort(
        subject.setting(), clients=np.arange(N_CLIENTS), evaluate=problem.evaluator(), seed=SEED
    )
    return np.concatenate([np.delete(cohort.respond(a.broadcast), 2, axis=0).ravel() for _, a in subject.asks()])


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        runs_to_its_end,
        stops_at_its_budget,
        learns,
        repeats_under_a_seed,
        draws_secret_noise_once,
        resumes,
        survives_absences,
        goes_on_after_missed_rounds,
        survives_hostile_answers,
        keeps_its_sensitivity,
        keeps_its_unit_bound,
        is_steered_by_releases,
        derives_its_requests,
        hides_vectors_from_its_server,
        answers_twice_alike,
        splits_into_cohorts,
        snapshots_everything,
        survives_failing_objectives,
        keeps_clients_apart,
        acts_or_costs_nothing,
        has_a_local_control,
        has_a_zeroed_control,
    )
}
