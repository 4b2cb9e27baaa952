"""Checks of what crosses from the clients to the server: one reward's move, and that releases alone steer."""

from __future__ import annotations

import gc
import types
from dataclasses import dataclass

import numpy as np

from privbo.protocol.messages import Ask, FloatArray, IntArray, Request, request_of, same_request
from privbo.testing.subject import N_RECORDS, Subject, bumps, require, toy_problem

_CLIENT = 2
_OTHER_REWARDS = (0.0, 1.0, -9.0, 9.0, float("nan"))
_MOST_TRIED = 8


def keeps_its_unit_bound(subject: Subject) -> None:
    """Another reward, or record, moves no vector by more than ``unit_bound``, and another reward one vector only."""
    if subject.unit == "client":
        return
    counted = _Altered()
    plain = _vectors(subject, counted)
    places = np.unique(np.linspace(0, counted.seen - 1, _MOST_TRIED).astype(int))
    others = [_Altered(place=int(place), reward=reward) for place in places for reward in _OTHER_REWARDS]
    for other in [_Altered(record=1.0)] if subject.unit == "record" else others:
        moved = 0
        for (ours, bound), (theirs, _) in zip(plain, _vectors(subject, other), strict=True):
            distance = float(np.linalg.norm(ours - theirs))
            require(
                distance <= bound * (1.0 + 1e-9),
                f"another {subject.unit} moves a vector by {distance:.6g}, unit_bound is {bound:.6g}; it must not. "
                f"Clip every {subject.unit}'s score to its range, and state the most that one moves",
            )
            moved += distance > 0.0
        enters = moved <= 1 or subject.unit == "record"
        require(enters, f"one reward enters {moved} requests; no reward may enter two")


@dataclass
class _Altered:
    """An objective one of whose outcomes is another, or one of its records; it counts the evaluations."""

    place: int = -1
    reward: float = 0.0
    record: float = 0.0
    seen: int = 0

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        values = bumps(clients, units) + self.record / N_RECORDS
        if 0 <= self.place - self.seen < len(values):
            values[self.place - self.seen] = self.reward
        self.seen += len(values)
        return values


def _vectors(subject: Subject, evaluate: _Altered) -> list[tuple[FloatArray, float]]:
    """A client's vectors, as the door takes them, with the bound of each request."""
    cohort, found = subject.cohort([_CLIENT], evaluate), []
    for _, ask in subject.asks():
        answer = np.asarray(cohort.respond(ask.broadcast), dtype=np.float64)[0]
        if ask.request is not None:
            sent = answer if np.isfinite(answer).all() else np.zeros(ask.request.dim)
            found.append((sent, ask.request.unit_bound or 0.0))
    return found


def is_steered_by_releases(subject: Subject) -> None:
    """A server that is told a run's releases, and has no clients, asks what was asked in the run, and asks it again."""
    algorithm, servers = subject.watched()
    record = subject.play(algorithm=algorithm)
    played = max(servers, key=lambda one: len(one.told))
    # Another run in between: what clients of the first one left anywhere in this process is overwritten.
    subject.play(problem=toy_problem(unit=subject.unit, score=lambda clients, units: 1.0 - bumps(clients, units)))
    server = subject.server(record.manifest.public_seed)
    for index, (ask, release) in enumerate(zip(played.asked, played.told, strict=True)):
        again, repeated = server.ask(), server.ask()
        require(
            again is not None, f"round {index}: ask() must follow from releases alone; they end the run, which went on"
        )
        if again is not None:
            words = "the server asks what its releases alone don't lead to"
            require(_alike(ask, again), f"round {index}: ask() must follow from releases alone; {words}")
            same = repeated is not None and _alike(again, repeated)
            require(same, f"round {index}: ask() must repeat its answer until tell(); the second was another")
        server.tell(release)
    require(server.ask() is None, "ask() must follow from releases alone; they let the run go on, which ended")


def derives_its_requests(subject: Subject) -> None:
    """A server that was told nothing derives every request of a run from its broadcast.

    Sites and guardians on other machines compute their protection so; they believe no number that was sent along.
    """
    algorithm, servers = subject.watched()
    fresh = subject.server(subject.play(algorithm=algorithm).manifest.public_seed)
    for ask in (ask for watched in servers for ask in watched.asked):
        derived = request_of(fresh, ask.broadcast, released=ask.request is not None)
        require(
            _same_requests(derived, ask.request),
            f"round {ask.broadcast.round}: request_for(broadcast) gives another request than ask(); both must be "
            "computed from the broadcast and the settings alone",
        )


def _alike(first: Ask, second: Ask) -> bool:
    ours, theirs = first.broadcast, second.broadcast
    if (ours.round, ours.arrays.keys()) != (theirs.round, theirs.arrays.keys()):
        return False
    arrays = all(np.array_equal(value, theirs.arrays[name]) for name, value in ours.arrays.items())
    return arrays and _same_requests(first.request, second.request)


def _same_requests(first: Request | None, second: Request | None) -> bool:
    return first is second if first is None or second is None else same_request(first, second)


def holds_a_row_of(root: object, answers: FloatArray) -> bool:
    """Whether an object reaches an array that contains a client's (non-zero) answer."""
    rows = {tuple(row) for row in answers if np.isfinite(row).all() and np.any(row)}
    seen: set[int] = set()
    stack: list[object] = [root] if rows else []
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        array = item.detach().cpu().numpy() if hasattr(item, "detach") and hasattr(item, "numpy") else item
        if not isinstance(array, np.ndarray):
            stack.extend(_parts_of(item))
            continue
        fits = array.dtype == np.float64 and array.ndim and array.shape[-1] == answers.shape[1]
        if fits and rows & {tuple(row) for row in array.reshape(-1, answers.shape[1])}:
            return True
    return False


def _parts_of(item: object) -> list[object]:
    """Contents of an object: never a module, a class or a function's globals, which hold the whole program."""
    if isinstance(item, (type, types.ModuleType)):
        return []
    if isinstance(item, types.FunctionType):
        return [cell.cell_contents for cell in item.__closure__ or ()]
    if isinstance(item, types.FrameType):
        return list(item.f_locals.values())
    return list(gc.get_referents(item))
