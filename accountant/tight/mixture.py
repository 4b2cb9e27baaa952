"""Dominating pairs of mixtures of Gaussians: P = sum of p_j N(c_j, z^2) against Q = N(0, z^2), and the other way.

The loss grows with the output (falls, in the other direction), so an edge is one output, found by Newton's method:
with the length 0 apart, log(exp(loss) - p_0) is convex in x with a slope between the least and the largest c_j / z^2,
and every term alone bounds x from above, whence the steps fall to the root from the right.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import ndtr

from accountant.errors import AccountingError
from accountant.events import MixtureOfGaussians
from accountant.mixture import ratio
from accountant.tight.pair import EPS, NODES, FloatArray, Pair, Tails

_STEPS: Final = 100
_CHUNK: Final = 4096


def removed_mixture(event: MixtureOfGaussians) -> Pair:
    """P = the mixture against Q = N(0, z^2)."""
    z, furthest = event.noise_multiplier, event.sensitivities[-1]

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = _line(event, -z * t, furthest + z * t)
        loss = ratio(event, x)[1]
        return loss, log_weight + loss

    def loss_range(t: float) -> tuple[float, float]:
        low, high = ratio(event, np.array([-z * t, furthest + z * t]))[1]
        return float(low), float(high)

    return Pair(
        tails=lambda edges: _tails(event, _position(event, edges)),
        loss_range=loss_range,
        loss_error=_loss_error(event),
        nodes=nodes,
    )


def added_mixture(event: MixtureOfGaussians) -> Pair:
    """P = N(0, z^2) against Q = the mixture: the loss falls with x."""
    z = event.noise_multiplier

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = _line(event, -z * t, z * t)
        return -ratio(event, x)[1], log_weight

    def loss_range(t: float) -> tuple[float, float]:
        high, low = -ratio(event, np.array([-z * t, z * t]))[1]
        return float(low), float(high)

    return Pair(
        tails=lambda edges: _tails(event, _position(event, -edges)).exchanged(),
        loss_range=loss_range,
        loss_error=_loss_error(event),
        nodes=nodes,
    )


def _line(event: MixtureOfGaussians, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """Points between low and high with log weights of N(0, z^2)."""
    x = np.linspace(low, high, NODES)
    t = x / event.noise_multiplier
    return x, -0.5 * t * t + math.log(t[1] - t[0]) - 0.5 * math.log(2.0 * math.pi)


def _tails(event: MixtureOfGaussians, x: FloatArray) -> Tails:
    """Tails of both beyond x; a normal tail errs by the rounding of t^2 / 2 in its exponent, and a little more."""
    z, furthest = event.noise_multiplier, event.sensitivities[-1]
    above, below = np.zeros_like(x), np.zeros_like(x)
    for length, chance in zip(event.sensitivities, event.chances, strict=True):
        above += chance * ndtr((length - x) / z)
        below += chance * ndtr((x - length) / z)
    t = np.minimum(np.abs(x) / z + furthest / z, 40.0 + furthest / z)
    return Tails(
        p_above=above,
        p_below=below,
        q_above=ndtr(-x / z),
        q_below=ndtr(x / z),
        relative_error=np.asarray(EPS * (8.0 + 2.0 * len(event.chances) + 2.0 * t * t), dtype=np.float64),
    )


def _position(event: MixtureOfGaussians, loss: FloatArray) -> FloatArray:
    """The x at which log r is ``loss``; -inf at and below the log of the chance of length 0."""
    out = np.empty_like(loss)
    for begin in range(0, len(loss), _CHUNK):
        few = slice(begin, begin + _CHUNK)
        out[few] = _root(event, loss[few])
    return out


def _root(event: MixtureOfGaussians, loss: FloatArray) -> FloatArray:
    lengths, chances = np.array(event.sensitivities), np.array(event.chances)
    moved = lengths > 0.0
    still, rest = float(chances[~moved].sum()), float(chances[moved].sum())
    inside = np.expm1(np.minimum(loss, 30.0)) + rest
    left = (loss >= 30.0) | (inside > 16.0 * EPS)
    near = np.log(np.where(left, np.maximum(inside, EPS), 1.0))
    target = np.where(loss < 30.0, near, loss + np.log1p(-still * np.exp(-np.maximum(loss, 30.0))))
    lengths, log_chances = lengths[moved], np.log(chances[moved])
    slopes = lengths / event.noise_multiplier**2
    x = np.min((target[:, None] - log_chances) / slopes + 0.5 * lengths, axis=1)
    for _ in range(_STEPS):
        terms = log_chances + (x[:, None] - 0.5 * lengths) * slopes
        peak = terms.max(axis=1)
        weights = np.exp(terms - peak[:, None])
        total = weights.sum(axis=1)
        gap = np.log(total) + peak - target
        if np.all(np.abs(gap[left]) <= _rounding(event)):
            return np.where(left, x, -math.inf)
        x = x - gap * total / (weights @ slopes)
    raise AccountingError(f"no output was found for every loss of {event!r}; use the Rényi accountant")


def _rounding(event: MixtureOfGaussians) -> float:
    """Difference that rounding may leave between equal losses: exponents are sums of numbers of this size."""
    far = event.sensitivities[-1] / event.noise_multiplier
    return 16.0 * EPS * (4.0 + far * far + 45.0 * far - math.log(min(event.chances)))


def _loss_error(event: MixtureOfGaussians) -> float:
    """Of an edge: rounding, chances that sum to 1 to a few eps, and cancellation at the low end."""
    still = event.chances[0] if event.sensitivities[0] == 0.0 else 1.0
    return 4.0 * _rounding(event) + 64.0 * EPS * (len(event.chances) + 1.0 / still)
