"""Checks of what crosses from the clients to the server: one reward's move, and that releases alone steer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from privbo.protocol.messages import (
    Ask,
    FloatArray,
    IntArray,
    Release,
    Server,
    request_of,
    same_request,
)
from privbo.testing.subject import Subject, bumps, noise_release, require, same, toy_problem

_CLIENT = 2
_OTHER_REWARDS = (0.0, 1.0, -9.0, 9.0, float("nan"))
_MOST_TRIED = 8


def keeps_its_reward_bound(subject: Subject) -> None:
    """Where one reward is the unit, another one moves no vector by more than ``reward_bound``, and one vector only."""
    if subject.unit != "reward":
        return
    counted = _Altered()
    plain = _vectors(subject, counted)
    for place in np.unique(np.linspace(0, counted.seen - 1, _MOST_TRIED).astype(int)):
        for reward in _OTHER_REWARDS:
            moved = []
            altered = _vectors(subject, _Altered(place=int(place), reward=reward))
            for (ours, bound), (theirs, _) in zip(plain, altered, strict=True):
                distance = float(np.linalg.norm(ours - theirs))
                require(
                    distance <= bound * (1.0 + 1e-9),
                    f"another reward moves a vector by {distance:.6g}, reward_bound is {bound:.6g}; clip every reward "
                    "to its range, and state the most that one moves",
                )
                moved += [distance] * (distance > 0.0)
            require(len(moved) <= 1, f"one reward enters {len(moved)} requests; no reward may enter two")


@dataclass
class _Altered:
    """An objective one of whose outcomes is another; it counts the evaluations."""

    place: int = -1
    reward: float = 0.0
    seen: int = 0

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        values = bumps(clients, units)
        if 0 <= self.place - self.seen < len(values):
            values[self.place - self.seen] = self.reward
        self.seen += len(values)
        return values


def _vectors(subject: Subject, evaluate: _Altered) -> list[tuple[FloatArray, float]]:
    """A client's vectors, as the door takes them, with the bound of each request."""
    server, cohort, found = subject.server(), subject.cohort([_CLIENT], evaluate), []
    for index in range(2 * subject.rounds):
        ask = server.ask()
        if ask is None:
            break
        answer = np.asarray(cohort.respond(ask.broadcast), dtype=np.float64)[0]
        if ask.request is not None:
            sent = answer if np.isfinite(answer).all() else np.zeros(ask.request.dim)
            found.append((sent, ask.request.reward_bound or 0.0))
        server.tell(noise_release(ask, index))
    return found


def is_steered_by_releases(subject: Subject) -> None:
    """A server that is told a run's releases, and has no clients, asks what was asked in the run."""
    asked: list[Ask] = []
    told: list[Release | None] = []

    def listen(server: Server) -> Server:
        return _Listening(server=server, asked=asked, told=told)  # type: ignore[return-value]  # as a server is used

    record = subject.play(algorithm=subject.wrapped(on_server=listen))
    first, releases = list(asked), list(told)
    # Another run in between: what clients of the first one left anywhere in this process is overwritten.
    subject.play(problem=replace(toy_problem(), batch_objective=lambda clients, units: 1.0 - bumps(clients, units)))
    server = subject.spec().played.server(subject.spec().setting(public_seed=record.manifest.public_seed))
    for index, (ask, release) in enumerate(zip(first, releases, strict=True)):
        again = server.ask()
        require(again is not None, f"round {index}: releases alone end the run, which went on")
        if again is not None:
            require(_alike(ask, again), f"round {index}: the server asks what its releases alone don't lead to")
        server.tell(release)
    require(server.ask() is None, "releases alone let the run go on, which ended")


def derives_its_requests(subject: Subject) -> None:
    """A server that was told nothing derives every request of a run from its broadcast.

    Sites and guardians on other machines compute their protection so; they believe no number that was sent along.
    """
    record_asked: list[Ask] = []

    def listen(server: Server) -> Server:
        return _Listening(server=server, asked=record_asked, told=[])  # type: ignore[return-value]  # used as a server

    record = subject.play(algorithm=subject.wrapped(on_server=listen))
    fresh = subject.spec().played.server(subject.spec().setting(public_seed=record.manifest.public_seed))
    for ask in record_asked:
        derived = request_of(fresh, ask.broadcast, released=ask.request is not None)
        is_same = derived is ask.request is None or (
            derived is not None and ask.request is not None and same_request(derived, ask.request)
        )
        require(
            is_same,
            f"round {ask.broadcast.round}: request_for(broadcast) gives another request than ask(); compute both from "
            "the broadcast and the settings alone",
        )


@dataclass
class _Listening:
    """A server whose questions, and what it is told, are written down."""

    server: Server
    asked: list[Ask]
    told: list[Release | None]

    def plan(self) -> object:
        return self.server.plan()

    def ask(self) -> Ask | None:
        ask = self.server.ask()
        if ask is not None and len(self.asked) == len(self.told):
            self.asked.append(deepcopy(ask))
        return ask

    def tell(self, release: Release | None) -> None:
        self.told.append(release)
        self.server.tell(release)


def _alike(first: Ask, second: Ask) -> bool:
    ours, theirs = first.broadcast, second.broadcast
    if (ours.round, ours.arrays.keys()) != (theirs.round, theirs.arrays.keys()):
        return False
    if not all(np.array_equal(value, theirs.arrays[name]) for name, value in ours.arrays.items()):
        return False
    if first.request is None or second.request is None:
        return first.request is second.request
    return same(first.request.weights, second.request.weights) and first.request.dim == second.request.dim
