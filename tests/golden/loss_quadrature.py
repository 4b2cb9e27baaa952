"""Epsilon and delta of Poisson-sampled Gaussian releases from the characteristic function of their privacy loss.

An oracle: it shares no code with the accountant and proves nothing. With K the log of the moment generating function
of the whole composition's loss under P, summed over the output by the trapezoid rule,

    delta(epsilon) = 1 / (2 pi) * integral over u of exp(K(s) - s epsilon) / (s (s + 1)),  s = theta + i u,

by the trapezoid rule too. With steps of 2 pi / P that is the sum over all k of exp(theta k P) delta(epsilon + k P):
theta and P are such that Rényi divergences leave all but k = 0 a share of exp(-15). Another tilt, a longer period and
finer nodes must agree, or nothing is answered.
"""

import math
from dataclasses import dataclass

import numpy as np

FOLDED = 15.0  # minus the log of the share that terms other than k = 0 may have
CANCELLED = 16.0  # log of how much larger than delta the integrand may be
POINTS = 64  # of a chunk's rows and columns
MOST = 1e9  # products of one integral
QUIET = 2e-7  # share of all that the last quarter of the points adds, at most
KINDS = ({"longer": 1.0, "fineness": 1.0, "below": 1.0}, {"longer": 1.4, "fineness": 1.3, "below": 0.8})
AGREED = 1e-4  # relative difference of two epsilons; the finer is answered
AGREED_DELTA = 5e-4
SHARES = (0.5, 0.8, 1.0)
DIRECTIONS = ("remove", "add")


@dataclass(frozen=True)
class Line:
    """Points ``s`` of a line, their weights (with 1 / (s (s + 1)) and the step), and K there."""

    s: np.ndarray
    weight: np.ndarray
    moment: np.ndarray

    def delta(self, epsilon):
        """The integral at ``epsilon``, which should be near the one that the line was made for."""
        return float(np.sum((self.weight * np.exp(self.moment - self.s * epsilon)).real))


def loss_at(x, q, z):
    """Log of 1 - q + q exp((2x - 1) / (2 z^2)), and its derivative."""
    y = (x - 0.5) / z**2
    near = np.log1p(q * np.expm1(np.minimum(y, 30.0)))
    far = math.log(q) + y + np.log1p((1 - q) / q * np.exp(-np.maximum(y, 30.0)))
    loss = np.where(y < 30.0, near, far)
    return loss, np.exp(math.log(q) + y - loss) / z**2


def law(part, direction, n_nodes):
    """Losses of one release at trapezoid nodes, log of P's weights there, and the size of the loss' derivative."""
    q, z, _ = part
    x = np.linspace(-13.0 * z, 13.0 * z + (direction == "remove"), n_nodes)
    log_weight = -0.5 * (x / z) ** 2 + math.log((x[1] - x[0]) / z) - 0.5 * math.log(2.0 * math.pi)
    loss, slope = loss_at(x, q, z)
    return (loss, log_weight + loss, slope) if direction == "remove" else (-loss, log_weight, slope)


class Composition:
    """K of one direction on the real line, where lines are chosen."""

    def __init__(self, parts, direction):
        self.parts, self.direction = parts, direction
        self.laws = [(*law(part, direction, 1501), part[2]) for part in parts]
        tilts = np.geomspace(1e-3, 1e9, 500)
        moments = np.array([self.moment(tilt) for tilt in tilts])
        self.tilts, self.moments = tilts[np.isfinite(moments)], moments[np.isfinite(moments)]

    def moment(self, tilt):
        """K at a real tilt."""
        total = 0.0
        for loss, log_weight, _, count in self.laws:
            terms = log_weight + tilt * loss
            peak = float(terms.max())
            small = float(np.sum(np.exp(log_weight) * np.expm1(np.minimum(tilt * loss, 1.0)))) if peak < 1.0 else 1.0
            whole = peak + math.log(float(np.sum(np.exp(terms - peak))))
            total += count * (math.log1p(small) if float((tilt * loss).max()) < 1.0 else whole)
        return total

    def bound(self, epsilon):
        """Log of the least delta that a Rényi divergence proves."""
        a = self.tilts
        return float(np.min(self.moments - a * epsilon + a * np.log(a) - (1.0 + a) * np.log1p(a)))

    def highest(self, delta):
        """The epsilon that a Rényi divergence proves."""
        a = self.tilts
        return float(np.min((self.moments + a * np.log(a) - (1.0 + a) * np.log1p(a) - math.log(delta)) / a))

    def tilt_and_period(self, epsilon, delta, below):
        """The tilt with the shortest period, and that."""
        a = self.tilts
        size = self.moments - a * epsilon - np.log(a) - np.log1p(a)
        fits = (size < size.min() + CANCELLED) & (size < math.log(delta) + CANCELLED + 6.0)
        periods = np.geomspace(1e-3 * epsilon, 1e3 * max(1.0, epsilon), 120)
        tails = np.array([self.bound(epsilon + period) for period in periods])
        best = (0.0, math.inf)
        for tilt in a[fits & (a <= 1.5 * a[int(np.argmin(size))])]:
            enough = (tails + tilt * periods < math.log(delta) - FOLDED) & (tilt * periods > FOLDED - math.log(delta))
            if np.any(enough):
                period = float(periods[int(np.argmax(enough))])
                if period < best[1]:
                    best = (float(tilt), period)
        return best[0] * below, best[1] / below

    def line(self, epsilon, delta, *, longer, fineness, below):
        """Points of the line for ``epsilon``, as many as add anything; None where that is too many."""
        tilt, period = self.tilt_and_period(epsilon, delta, below)
        if not math.isfinite(period):
            return None
        step = 2.0 * math.pi / (longer * period)
        base = self.moment(tilt)
        found, work, total, first = [], 0.0, 0.0, 0
        columns = POINTS
        while True:
            rows = POINTS if not found else 3 * POINTS
            columns = POINTS if not found else max(POINTS, first // rows)
            k = first + np.arange(rows * columns)
            s = tilt + 1j * step * k
            moment, products = self.moments_of(tilt, step, first, rows, columns, fineness, base)
            work += products
            weight = np.where(k == 0, 0.5, 1.0) * step / math.pi / (s * (s + 1.0))
            sizes = np.abs(weight * np.exp(moment - base))
            total += float(sizes.sum())
            found.append((s, weight, moment))
            first += rows * columns
            if float(sizes[3 * len(sizes) // 4 :].sum()) < QUIET * total:
                return Line(*(np.concatenate(one) for one in zip(*found, strict=True)))
            if work > MOST:
                return None

    def moments_of(self, tilt, step, first, rows, columns, fineness, base):
        """K at ``tilt + i step k`` for k from ``first``, and the number of products it took.

        exp(i (a + b)) - 1 = A + B + A B with A = exp(i a) - 1, B = exp(i b) - 1: a matrix product, in which nothing
        of size 1 swallows small losses.
        """
        total = np.full(rows * columns, base, dtype=complex)
        products = 0
        last = step * (first + rows * columns)
        for part in self.parts:
            _, z, count = part
            loss, log_weight, slope = law(part, self.direction, 801)
            size = log_weight + tilt * loss
            fastest = float(slope[size > max(size.max(), 0.0) - 25.0 - math.log(count)].max())
            rate = fineness * (last * fastest + 12.0 / z)
            n_nodes = int((26.0 * z + 1.0) * rate / (2.0 * math.pi)) + 60
            products += n_nodes * rows * columns
            if products > MOST:
                break
            loss, log_weight, _ = law(part, self.direction, n_nodes)
            weight = np.exp(log_weight + tilt * loss)
            weight /= weight.sum()
            high = _turned(np.outer(step * (first + columns * np.arange(rows)), loss)) * weight
            low = _turned(np.outer(step * np.arange(columns), loss))
            excess = (high @ low.T + high.sum(axis=1)[:, None] + (low @ weight)[None, :]).ravel()
            size = 0.5 * np.log1p(excess.real * (2.0 + excess.real) + excess.imag**2)
            total += count * (size + 1j * np.arctan2(excess.imag, 1.0 + excess.real))
        return total, products

    def epsilon(self, delta, start, **kind):
        """(epsilon, line) by one kind of line; None where it does not settle."""
        epsilon = start
        for _ in range(8):
            line = self.line(epsilon, delta, **kind)
            if line is None:
                return None
            low, high = 1e-3 * epsilon, 1.5 * epsilon
            if not line.delta(low) > delta > line.delta(high):
                return None
            for _ in range(45):
                between = 0.5 * (low + high)
                low, high = (between, high) if line.delta(between) > delta else (low, between)
            if abs(high - epsilon) < 0.03 * epsilon:
                return high, line
            epsilon = high
        return None


def _turned(angle):
    """exp(i angle) - 1."""
    half = np.sin(0.5 * angle)
    return -2.0 * half * half + 2j * half * np.cos(0.5 * angle)


def solve(parts, delta):
    """(epsilon, deltas at ``SHARES`` of it), each None where two kinds of line do not agree."""
    best, chosen = 0.0, []
    with np.errstate(all="ignore"):
        for direction in DIRECTIONS:
            one = Composition(parts, direction)
            if best and one.bound(best) < math.log(delta):
                continue  # a Rényi divergence alone shows that the other direction is dearer
            first = one.epsilon(delta, one.highest(delta), **KINDS[0])
            both = [first, first and one.epsilon(delta, first[0], **KINDS[1])]
            if None in both or abs(both[0][0] - both[1][0]) > AGREED * both[1][0]:
                return None, [None] * len(SHARES)
            best = max(best, both[1][0])
            chosen.append([line for _, line in both])
        curve = []
        for share in SHARES:
            deltas = [[line.delta(share * best) for line in both] for both in chosen]
            agreed = all(abs(coarse - fine) <= AGREED_DELTA * fine for coarse, fine in deltas)
            curve.append(max(fine for _, fine in deltas) if agreed else None)
        return best, curve
