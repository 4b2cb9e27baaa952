"""Statistics of all experiments: means and ratios with their errors and intervals, and what is claimed together.

Seeds are the unit where one problem is judged; families of problems are where a sentence speaks of the next user's
problem, which is another family. Tests are Student's t, and p-values of what is claimed together are adjusted by Holm's
rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from privbo.comparisons.verdict import chance_below, holm
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import JsonObject

CONFIDENCE = 0.95
LEVEL = 1.0 - CONFIDENCE


@dataclass(frozen=True)
class Estimate:
    """A mean, or a ratio of means, with its standard error.

    Attributes:
        value: The estimate.
        error: Its standard error; infinite for a single unit.
        count: Units that it is over: seeds, clients or families.
        is_geometric: Whether it is a mean of logarithms, whose tests and intervals are those of the logarithm.

    Example:
        >>> one = Estimate(0.5, 0.1, 10)
        >>> f"{one:.2f}", f"{one:.2f±}", f"{one:.2f[}", round(one.below(0.7), 3)
        ('0.50 (0.10)', '0.50 ± 0.23', '0.50 [0.27, 0.73]', 0.038)
    """

    value: float
    error: float
    count: int
    is_geometric: bool = False

    def below(self, bound: float = 0.0) -> float:
        """Give the probability of a value so far below a bound by chance, by Student's t over units."""
        if self.is_geometric:
            return chance_below(math.log(self.value / bound), self.error / self.value, self.count)
        return chance_below(self.value - bound, self.error, self.count)

    def above(self, bound: float = 0.0) -> float:
        """Give the probability of a value so far above a bound by chance."""
        if self.is_geometric:
            return chance_below(math.log(bound / self.value), self.error / self.value, self.count)
        return chance_below(bound - self.value, self.error, self.count)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the 95 % interval."""
        return self._end(LEVEL / 2), self._end(1.0 - LEVEL / 2)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval's width."""
        low, high = self.interval
        return (high - low) / 2

    def _end(self, share: float) -> float:
        """End of the interval that has so much of Student's law below it."""
        if self.count < 2:
            return math.copysign(math.inf, share - 0.5)
        reach = float(stdtrit(self.count - 1, share)) * self.error
        return self.value * math.exp(reach / self.value) if self.is_geometric else self.value + reach

    def __format__(self, spec: str) -> str:
        """Give the value with its error in brackets; with ``±`` or ``[`` behind the format, with its 95 % interval."""
        form = spec.rstrip("±[")
        if not math.isfinite(self.error):
            return f"{self.value:{form}}"
        if spec.endswith("["):
            return f"{self.value:{form}} [{self.interval[0]:{form}}, {self.interval[1]:{form}}]"
        return f"{self.value:{form}}" + (
            f" ± {self.half_width:{form}}" if spec.endswith("±") else f" ({self.error:{form}})"
        )


@dataclass(frozen=True)
class Measure:
    """A measure over seeds.

    Attributes:
        by_seed: Values, in the order of the seeds.
        kept: Mean and standard error, where only these were kept.
    """

    by_seed: tuple[float, ...]
    kept: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.by_seed)) if self.kept is None else self.kept[0]

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; 0 for a single one."""
        return float(np.std(self.by_seed, ddof=1)) if len(self.by_seed) > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean over seeds; 0 for a single one."""
        return float(self.deviation / np.sqrt(len(self.by_seed))) if self.kept is None else self.kept[1]

    @property
    def least(self) -> float:
        """Smallest value."""
        return min(self.by_seed)

    @property
    def most(self) -> float:
        """Largest value."""
        return max(self.by_seed)

    @property
    def total(self) -> float:
        """Sum over seeds."""
        return float(np.sum(self.by_seed))

    def over(self, seeds: int) -> Estimate:
        """Give the mean as an estimate over its seeds, or over so many where they were not kept."""
        return Estimate(self.mean, self.error, len(self.by_seed) or seeds)

    def __format__(self, spec: str) -> str:
        spread = {"±": self.error, "~": self.deviation}.get(spec[-1:])
        if spread is None:
            return format(self.mean, spec)
        return f"{self.mean:{spec[:-1]}} ± {spread:{spec[:-1].lstrip('+')}}"

    def to_dict(self) -> JsonObject:
        """Give mean and standard error as JSON."""
        return {"mean": self.mean, "standard_error": self.error}


def mean(values: Sequence[float]) -> Estimate:
    """Give the mean of values."""
    count = len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Estimate(float(np.mean(values)), error, count)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> FloatArray:
    """Give the values of both at the seeds that both have, ``(2, n_seeds)``."""
    return np.array([(value, theirs[seed]) for seed, value in sorted(ours.items()) if seed in theirs]).reshape(-1, 2).T


def ratio(ours: Iterable[float], theirs: Iterable[float]) -> Estimate:
    """Give the ratio of the means of paired values, with the error of the delta method.

    Example:
        >>> f"{ratio([1.0, 2.1, 2.9], [2.0, 4.0, 6.0]):.3f}"
        '0.500 (0.012)'
    """
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    value = float(a.mean() / b.mean())
    return Estimate(value, mean((a - value * b) / b.mean()).error, len(a))


def geometric(ratios: Iterable[Estimate]) -> Estimate:
    """Give the geometric mean of ratios of different families, with its error over families.

    Another user's problem is another family, so families are what it generalises over: seeds of the same ones say
    nothing about the next. The error of one family alone is infinite.

    Example:
        >>> f"{geometric([Estimate(0.5, 0.01, 20), Estimate(0.8, 0.01, 20)]):.2f}"
        '0.63 (0.15)'
    """
    logs = mean([math.log(one.value) for one in ratios])
    value = math.exp(logs.value)
    return Estimate(value, value * logs.error, logs.count, is_geometric=True)


def losing(ratios: Iterable[Estimate]) -> int:
    """Count ratios above 1 by Holm's test of all of them, one-sided at 5 %.

    Example:
        >>> losing([Estimate(1.5, 0.01, 6), Estimate(1.01, 0.1, 6), Estimate(0.5, 0.01, 6)])
        1
    """
    return sum(p <= LEVEL for p in holm([one.above(1.0) for one in ratios]) if p is not None)
