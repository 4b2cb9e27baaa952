"""The way a search goes: common points, what was released of them, how the next ones follow and one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from privbo.protocol.messages import FloatArray, IntArray, Request, Setting, UnitName


@dataclass(frozen=True, kw_only=True)
class Question:
    """Points that clients evaluate in a round.

    Attributes:
        points: ``(k, n_dims)``.
        pulls: Evaluations of each by every client.
    """

    points: FloatArray
    pulls: int = 1


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that was said of points so far.

    Attributes:
        points: ``(m, n_dims)``.
        means: What the release said of each, ``(m,)``; larger is better.
        stddev: Standard deviation of the noise in each, ``(m,)``.
        pulls: Evaluations of each by one client for that release, ``(m,)``.
        turns: Release that said it, from 0, ``(m,)``.
    """

    points: FloatArray
    means: FloatArray
    stddev: FloatArray
    pulls: IntArray
    turns: IntArray

    @staticmethod
    def nothing(n_dims: int) -> Seen:
        """Give the start."""
        none = np.empty(0, dtype=np.int64)
        return Seen(points=np.empty((0, n_dims)), means=np.empty(0), stddev=np.empty(0), pulls=none, turns=none)

    def with_more(self, asked: Question, means: FloatArray, stddev: float) -> Seen:
        """Give it with what one more release said."""
        k, turn = len(asked.points), int(self.turns[-1]) + 1 if len(self.turns) else 0
        return Seen(
            points=np.concatenate([self.points, asked.points]),
            means=np.concatenate([self.means, means]),
            stddev=np.concatenate([self.stddev, np.full(k, stddev)]),
            pulls=np.concatenate([self.pulls, np.full(k, asked.pulls)]),
            turns=np.concatenate([self.turns, np.full(k, turn)]),
        )


class Form(Protocol):
    """The form in which clients say what they think of points."""

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:
        """PRIVATE: answers to objective values ``(n, pulls, k)``; a row that is not finite is an absence."""
        ...

    def request(self, count: int, total: int, pulls: int, setting: Setting) -> Request:
        """Ask for the mean answer to ``count`` points, evaluated so often, out of ``total`` over the run."""
        ...


Propose: TypeAlias = Callable[[Seen, int], Question | None]
Choose: TypeAlias = Callable[[Seen], int]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for a common setting; everything in it is public and deterministic.

    Attributes:
        counts: Number of points in every round.
        form: Of the answers.
        propose: Names so many next points; None where the search is over.
        choose: Index of the point that wins.
        pulls: Fewest evaluations of a point by one client, in every round; None is one.
    """

    counts: tuple[int, ...]
    form: Form
    propose: Propose
    choose: Choose
    pulls: tuple[int, ...] | None = None

    def planned(self, round_: int, setting: Setting) -> Request:
        """Give the request of a round as it is planned."""
        return self.form.request(
            self.counts[round_], sum(self.counts), 1 if self.pulls is None else self.pulls[round_], setting
        )

    def request(self, asked: Question, setting: Setting) -> Request:
        """Give the request that goes with a question."""
        return self.form.request(len(asked.points), sum(self.counts), asked.pulls, setting)


def listed(points: FloatArray) -> Propose:
    """Propose points of a list that was fixed before the run, in its order."""
    return lambda seen, count: Question(points=points[len(seen.points) : len(seen.points) + count])


def largest(seen: Seen) -> int:
    """Choose the point of which the largest number was released."""
    return int(seen.means.argmax())
