"""The way a search goes: common points, what was released of them, how the next ones follow and one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from privbo.protocol.messages import FloatArray, Request, Setting, UnitName


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that was said of points so far.

    Attributes:
        points: ``(m, n_dims)``.
        means: What the release said of each, ``(m,)``; larger is better.
        stddev: Standard deviation of the noise in each, ``(m,)``.
    """

    points: FloatArray
    means: FloatArray
    stddev: FloatArray

    @staticmethod
    def nothing(n_dims: int) -> Seen:
        """Give the start."""
        return Seen(points=np.empty((0, n_dims)), means=np.empty(0), stddev=np.empty(0))

    def with_more(self, points: FloatArray, means: FloatArray, stddev: float) -> Seen:
        """Give it with what one more release said."""
        return Seen(
            points=np.concatenate([self.points, points]),
            means=np.concatenate([self.means, means]),
            stddev=np.concatenate([self.stddev, np.full(len(points), stddev)]),
        )


class Form(Protocol):
    """The form in which clients say what they think of points."""

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:
        """PRIVATE: answers to objective values ``(n, k)``; a row that is not finite is an absence."""
        ...

    def request(self, count: int, total: int, setting: Setting) -> Request:
        """Ask for the mean answer to ``count`` points out of ``total`` over the run."""
        ...


Propose: TypeAlias = Callable[[Seen, int], FloatArray]
Choose: TypeAlias = Callable[[Seen], int]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for a common setting; everything in it is public and deterministic.

    Attributes:
        counts: Number of points in every round.
        form: Of the answers.
        propose: Names so many next points, ``(k, n_dims)``.
        choose: Index of the point that wins.
    """

    counts: tuple[int, ...]
    form: Form
    propose: Propose
    choose: Choose

    def request(self, round_: int, setting: Setting) -> Request:
        """Give the request of a round."""
        return self.form.request(self.counts[round_], sum(self.counts), setting)


def listed(points: FloatArray) -> Propose:
    """Propose points of a list that was fixed before the run, in its order."""
    return lambda seen, count: points[len(seen.points) : len(seen.points) + count]


def largest(seen: Seen) -> int:
    """Choose the point of which the largest number was released."""
    return int(seen.means.argmax())
