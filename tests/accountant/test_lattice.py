"""One release's lattice masses against the pair they stand for.

What rounding does is too small to see, so it is made large: tails that may lie off by a percent do, in random
directions. What the arithmetic itself loses is looked for at forty digits.
"""

import itertools
import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from accountant.events import Adjacency
from accountant.mechanisms.pair import EPS, Pair, Tails
from accountant.tight import bounds, fourier, numerical
from accountant.tight.bounds import LowerSums, Place, UpperSum
from accountant.tight.fourier import TiltedSum, Window, tilted_sum
from accountant.tight.lattice import Cells, Extent, lower_cells, upper_cells
from tests.accountant.builders import laplace
from tests.accountant.oracles import bisected

MU = 1.3


def gaussian_tails(edges, move=lambda tail: tail, error=0.0):
    """Tails of N(mu, 1) against N(0, 1), each moved by whoever asks."""
    p, q = edges / MU - 0.5 * MU, edges / MU + 0.5 * MU
    tails = [move(ndtr(t)) for t in (-p, p, -q, q)]
    names = ("p_above", "p_below", "q_above", "q_below")
    return Tails(**dict(zip(names, tails, strict=True)), relative_error=np.full(len(edges), error))


def pair_of(tails, low=-4.0, high=4.9, loss_error=0.0):
    return Pair(tails=tails, loss_range=lambda t: (low * t, high * t), loss_error=loss_error, nodes=lambda t: t)


def moved(seed, error):
    """Tails wrong by up to the stated relative error, in directions that are all alike or drawn."""
    rng = np.random.default_rng(seed)
    if seed < 2:
        return lambda tail: tail * (1.0 + error * (-1.0) ** seed)
    return lambda tail: tail * (1.0 + error * rng.choice([-1.0, 1.0], size=tail.shape))


def wrong_pairs(error, *ends):
    for seed in range(20 if error else 1):
        yield pair_of(partial(gaussian_tails, move=moved(seed, error), error=error / (1 - error)), *ends)


def gaussian_delta(epsilon):
    return ndtr(0.5 * MU - epsilon / MU) - np.exp(epsilon) * ndtr(-0.5 * MU - epsilon / MU)


def hockey_stick(masses, losses, epsilon):
    """The sum over losses above epsilon of (1 - exp(epsilon - loss)) mass."""
    return float(np.sum(-np.expm1(np.minimum(epsilon - losses, 0.0)) * masses))


def lattice_delta(upper, spacing, epsilon):
    cells = upper.cells
    return hockey_stick(cells.masses, spacing * (cells.start + np.arange(len(cells.masses))), epsilon) + upper.infinite


@pytest.mark.parametrize("error", [0.0, 0.01])
@pytest.mark.parametrize("t", [0.4, 1.0])
def test_the_upper_lattice_dominates_however_wrong_the_tails_are(error, t):
    spacing = 0.25
    for pair in wrong_pairs(error):
        upper = upper_cells(pair, 1, spacing=spacing, extent=Extent(t=t))
        assert np.all(upper.cells.masses >= 0.0)
        for epsilon in np.arange(-8.0, 8.0, spacing / 3):
            found, truth = lattice_delta(upper, spacing, epsilon), gaussian_delta(epsilon)
            assert found >= truth * (1 - 1e-13)
            if not error:  # the chord over a cell, what lies beyond the top, and what was lifted from below
                chord = truth * math.exp(spacing) + 1e-12
                low = spacing * upper.cells.start
                lifted = ndtr(low / MU - 0.5 * MU) if epsilon < low + spacing else 0.0
                assert found <= chord + upper.infinite + lifted
    on_point = spacing * 2.0
    if not error and t == 1.0:
        assert lattice_delta(upper, spacing, on_point) == pytest.approx(gaussian_delta(on_point), abs=1.5e-3)


@pytest.mark.parametrize("error", [0.0, 0.01])
@pytest.mark.parametrize(("low", "high"), [(-4.0, 4.9), (1.5, 3.0), (-3.0, -1.0)])
def test_the_lower_cells_hold_no_more_of_p_and_no_less_of_q_than_there_is(error, low, high):
    spacing = 0.25
    for pair in wrong_pairs(error, low, high):
        lower = lower_cells(pair, 3, spacing=spacing, extent=Extent(t=1.0))
        assert lower.p.count == lower.q_scaled.count == 3
        ks = lower.p.start + np.arange(len(lower.p.masses))
        assert lower.q_scaled.start == lower.p.start
        assert spacing * ks[0] <= low < high <= spacing * ks[-1]
        edges = np.append(spacing * (ks - 0.5), np.inf)
        p = ndtr(edges[1:] / MU - 0.5 * MU) - ndtr(edges[:-1] / MU - 0.5 * MU)
        q = (ndtr(-edges[:-1] / MU - 0.5 * MU) - ndtr(-edges[1:] / MU - 0.5 * MU)) * np.exp(spacing * ks)
        assert np.all(lower.p.masses <= p * (1 + 1e-11))
        assert np.all(lower.q_scaled.masses >= q * (1 - 1e-11))
        assert np.all(lower.p.masses >= 0.0)
        below = ndtr(edges[0] / MU - 0.5 * MU)
        allowed = below + 1e-9 + 2.1 * error * (1 + 2 * MU / spacing)  # tails are that many times larger than a cell
        assert np.sum(lower.p.masses) >= 1 - allowed
        if not error:
            np.testing.assert_allclose(lower.p.masses, p, rtol=1e-9)
            np.testing.assert_allclose(lower.q_scaled.masses, q, rtol=1e-9)


def one_cell(at, spacing, p_above, q_above, error):
    """The upper lattice of a pair given by its tails at a few edges from ``at`` on."""

    def tails(edges):
        p, q = np.array(p_above), np.array(q_above)
        assert len(edges) == len(p)
        return Tails(p_above=p, p_below=1 - p, q_above=q, q_below=1 - q, relative_error=np.array(error))

    pair = Pair(
        tails=tails,
        loss_range=lambda t: (at, at + (len(p_above) - 2.5) * spacing),
        loss_error=0.0,
        nodes=lambda t: (at, at),
    )
    return upper_cells(pair, 1, spacing=spacing, extent=Extent(t=1.0))


@pytest.mark.parametrize("signs", list(itertools.product([-1.0, 1.0], repeat=4)))
@pytest.mark.parametrize("error", [(1e-3, 1e-3), (1e-9, 1e-3), (1e-3, 1e-9)])
def test_a_cell_holds_the_worst_that_its_tails_admit(signs, error):
    """Tails computed to either side of the truth, at both edges; their errors need not be alike."""
    spacing, p, q = 0.5, np.array([0.4, 0.1]), np.array([0.3, 0.04])
    up, down = np.array(signs[:2]) * error, np.array(signs[2:]) * error
    found = one_cell(0.0, spacing, p * (1 + up), q * (1 + down), error)
    low, high = found.cells.masses
    # beyond the top what Q has not exp(0.5) times is infinite loss; either tail may lie off by its error
    rest = p[1] * (1 + up[1]) * (1 + error[1]) - math.exp(0.5) * q[1] * (1 + down[1]) * (1 - error[1])
    assert found.infinite >= rest * (1 - 1e-12) >= (p[1] - math.exp(0.5) * q[1]) * (1 - 1e-5)
    chord = ((p[0] - p[1]) - (q[0] - q[1])) / -math.expm1(-spacing)
    assert high >= min(chord, p[0] - p[1]) * (1 - 1e-5)
    assert low + high + found.infinite >= 1 - 1e-5
    everything = one_cell(0.0, spacing, p * (1 + up), [0.3, 0.3], error)  # no mass of Q between the edges
    for epsilon, truth in ((-40.0, 1.0), (0.0, p[0] - 0.3), (spacing, 0.0)):
        assert lattice_delta(everything, spacing, epsilon) >= truth - 1e-5


@pytest.mark.parametrize(
    ("cells", "less", "places"),
    [(1, 0.003, [(k, 0.01) for k in range(40_000, 40_060)]), (4, 1e-3, [(3, 100 + 0.137 * i) for i in range(60)])],
    ids=["at losses of 400", "four cells, each a hundred wide"],
)
def test_a_cell_allows_for_the_rounding_of_its_own_edge_and_of_its_chord(cells, less, places):
    """An edge is off by up to a hundred eps, so is what is taken off for Q; the last cell errs by its own, not by 0."""
    mp.mp.dps = 60
    p = 0.25
    for k, spacing in places:
        share = p * math.exp(-less - spacing * k)
        first = spacing * (k + 1 - cells)
        found = one_cell(first, spacing, [p] * cells + [0.0], [share] * cells + [0.0], [0.0] * (cells + 1))
        exact = (mp.mpf(p) - mp.exp(mp.mpf(spacing) * k) * mp.mpf(share)) / -mp.expm1(-mp.mpf(spacing))
        assert mp.mpf(float(found.cells.masses[cells])) >= exact


def test_cells_allow_for_the_rounding_of_their_own_arithmetic():
    """Differences of tails of 26 bits are exact; every chord and every scaled mass then errs to the safe side."""
    mp.mp.dps = 40

    def coarse(tail):
        digits, exponent = np.frexp(tail)
        return np.ldexp(np.round(digits * 2.0**26), exponent - 26)

    spacing = 0.7
    pair = pair_of(lambda edges: gaussian_tails(edges, coarse, EPS), -20.0, 21.0)
    upper = upper_cells(pair, 1, spacing=spacing, extent=Extent(t=1.0))
    ks = upper.cells.start + np.arange(len(upper.cells.masses))
    tails = gaussian_tails(spacing * ks, coarse)
    points = [mp.mpf(spacing) * int(k) for k in ks]
    for m, here in enumerate(points[:-1]):
        after = zip(upper.cells.masses[m + 1 :], points[m + 1 :], strict=True)
        found = mp.fsum(mp.mpf(float(mass)) * -mp.expm1(here - there) for mass, there in after) + upper.infinite
        above, below = mp.mpf(tails.p_above[m]), mp.mpf(tails.p_below[m])
        right = above - mp.exp(here) * mp.mpf(tails.q_above[m])
        left = 1 - mp.exp(here) + mp.exp(here) * mp.mpf(tails.q_below[m]) - below
        truth = right if here >= 0 else left
        tail = above if here >= 0 else 1
        assert truth <= found <= truth + tail * mp.mpf(10) ** -9
    lower = lower_cells(pair, 1, spacing=spacing, extent=Extent(t=1.0))
    ks = lower.p.start + np.arange(len(lower.p.masses))
    inner = gaussian_tails(spacing * (ks - 0.5), coarse)
    above, below = np.append(inner.q_above, 0.0), np.append(inner.q_below, 1.0)
    masses = np.where(below[1:] < 0.5, below[1:] - below[:-1], above[:-1] - above[1:])  # of the smaller tail
    for k, mass, scaled in zip(ks, masses.tolist(), lower.q_scaled.masses, strict=True):
        assert mp.mpf(float(scaled)) >= mp.mpf(mass) * mp.exp(mp.mpf(spacing) * int(k))


@pytest.mark.parametrize(("low", "high"), [(-30.0, 0.6), (-0.6, 30.0)])
def test_what_a_release_leaves_out_counts_as_often_as_it_is_made(low, high):
    def cells(count, tails=gaussian_tails):
        return upper_cells(pair_of(tails, low, high), count, spacing=0.5, extent=Extent(t=1.0))

    single, many = cells(1), cells(7)
    assert many.cells.count == 7
    assert many.infinite == pytest.approx(7 * single.infinite, rel=1e-12)
    top = 0.5 * (single.cells.start + len(single.cells.masses) - 1)
    assert high + 0.5 <= top < high + 1.0
    assert single.infinite == pytest.approx(gaussian_delta(top), rel=1e-9)
    wrong = cells(1, lambda e: gaussian_tails(e, error=np.linspace(0.0, 0.5, len(e))))
    tails = gaussian_tails(np.array([top]))
    both = tails.p_above[0] + math.exp(top) * tails.q_above[0]
    assert wrong.infinite == pytest.approx(single.infinite + 0.5 * both, rel=1e-9)


@pytest.mark.parametrize("loss_error", [1e-6, 0.01, 0.1, 0.9, 2.5, 1e6])
@pytest.mark.parametrize(("low", "high"), [(-4.0, 4.9), (1.5, 3.0), (-3.0, -1.0)])
def test_the_upper_lattice_dominates_wherever_its_edges_really_lie(loss_error, low, high):
    """Edges off by as much as they may be, to either side or both; less would not do."""
    spacing, extent = 0.25, Extent(t=1.0)

    def tails(side):
        rng = np.random.default_rng(8)
        return lambda edges: gaussian_tails(edges + loss_error * (side or rng.choice([-1.0, 1.0], size=edges.shape)))

    epsilons, short = np.arange(-8.0, 8.0, spacing / 3), 0
    for side, said in itertools.product((-1.0, 1.0, 0.0), (loss_error, 0.0)):
        upper = upper_cells(pair_of(tails(side), low, high, said), 1, spacing=spacing, extent=extent)
        assert np.all(upper.cells.masses >= 0.0)
        found = np.array([lattice_delta(upper, spacing, epsilon) for epsilon in epsilons])
        below = bool(np.any(found < gaussian_delta(epsilons) * (1 - 1e-13)))
        assert not (said and below)
        short += below
    assert short or loss_error < 0.01  # planted fault: nothing is said of edges that lie off


@pytest.mark.parametrize(("bottom", "cap"), [(-1.0, 2.0), (-9.0, 0.25), (0.5, 9.0), (3.0, 4.0), (-3.0, -2.0)])
def test_an_extent_bounds_the_lattice_and_its_ends_hold_the_rest(bottom, cap):
    pair, spacing, extent = pair_of(gaussian_tails), 0.25, Extent(t=0.5, bottom=bottom, cap=cap)
    low, high = extent.of(pair)
    assert (low, high) == (max(-2.0, bottom), max(low, min(2.45, cap)))
    upper, lower = (cells(pair, 1, spacing=spacing, extent=extent) for cells in (upper_cells, lower_cells))
    assert float(np.sum(upper.cells.masses)) + upper.infinite == pytest.approx(1.0, rel=1e-12)
    ks = lower.p.start + np.arange(len(lower.p.masses))
    first = spacing * (ks[0] - 0.5)
    assert float(np.sum(lower.p.masses)) == pytest.approx(1.0 - ndtr(first / MU - 0.5 * MU), rel=1e-12)
    q = lower.q_scaled.masses * np.exp(-spacing * ks)
    assert float(np.sum(q)) == pytest.approx(1.0 - ndtr(first / MU + 0.5 * MU), rel=1e-12)
    for epsilon in np.arange(-3.0, 6.0, spacing / 3):
        truth = gaussian_delta(epsilon)
        assert lattice_delta(upper, spacing, epsilon) >= truth * (1 - 1e-12)
        above = spacing * ks > epsilon
        test = lower.p.masses[above].sum() - math.exp(epsilon) * q[above].sum()
        assert test <= truth * (1 + 1e-12)


# ---- sums of lattice variables against direct convolution, and their stated error against what may go wrong


def convolved(parts):
    """Masses of the sum of all parts by direct convolution, and its first point."""
    total, start = np.ones(1), 0
    for part in parts:
        for _ in range(part.count):
            total, start = np.convolve(total, part.masses), start + part.start
    return start, total


def l1_error(found):
    """The bound of all errors together, in the l1 norm."""
    size = found.window.size
    return found.outside + math.sqrt(size) * found.spread + size * found.each + found.relative


def some_parts():
    rng = np.random.default_rng(5)
    first, second, third = (rng.random(n) ** 3 for n in (9, 4, 6))
    second[1] = 0.0
    return [
        Cells(start=-3, masses=first / first.sum(), count=3),
        Cells(start=2, masses=second / second.sum(), count=1),
        Cells(start=-5, masses=third, count=2),  # masses need not sum to 1
    ]


@pytest.mark.parametrize("theta", [0.05, 0.7, 6.0])
@pytest.mark.parametrize(
    "window", [(-40, 100), (-25, 60), (-8, 64), (-60, 62), (-10, 12), (4, 16), (-40, 20), (-40, 101)]
)
def test_a_tilted_sum_is_the_convolution_to_within_its_error(theta, window):
    """Windows that hold everything, miss some of the top, of the bottom or of both, or are shorter than a part."""
    spacing, (start, size) = 0.1, window
    parts = some_parts()
    low, masses = convolved(parts)
    ks = low + np.arange(len(masses))
    tilted = masses * np.exp(theta * spacing * ks)
    found = tilted_sum(parts, spacing=spacing, theta=theta, window=Window(start=start, size=size, up=2.0, down=-2.0))
    assert found.log_scale == pytest.approx(math.log(tilted.sum()), rel=1e-12)
    tilted = tilted / tilted.sum()
    inside = (ks >= start) & (ks < start + size)
    truth = np.zeros(size)
    truth[ks[inside] - start] = tilted[inside]
    gone = float(tilted[~inside].sum())
    assert np.all(found.tilted >= 0.0)
    error = l1_error(found)
    assert np.sum(np.abs(found.tilted - truth)) + gone <= 2.0 * error  # folded in, and missing
    assert np.sum(np.abs(found.tilted - truth)) <= error
    assert gone <= error
    if window == (-40, 100):
        assert np.sum(np.abs(found.tilted - truth)) <= 1e-14
        assert np.max(np.abs(found.tilted - truth)) <= found.each + found.spread + found.outside + found.relative


@pytest.mark.parametrize("outside", [5.0, 23.0])
@pytest.mark.parametrize("guess", [(-400, 50), (300, 200), (-60, 800)])
def test_a_window_fits_itself_to_what_is_summed(outside, guess):
    """Moved and cut to where Chernoff's bounds leave exp(-outside) to either side, wherever it was expected."""
    window = Window(start=guess[0], size=guess[1], up=6.0, down=-6.0)
    found = tilted_sum(some_parts(), spacing=0.1, theta=0.7, window=window, outside=outside)
    assert 0.05 * math.exp(-outside) <= found.outside <= 2.0 * math.exp(-outside) + 1e-13
    low, masses = convolved(some_parts())
    losses = 0.1 * (low + np.arange(len(masses)))
    tilted = masses * np.exp(0.7 * losses)
    bottom, top = 0.1 * found.window.start, 0.1 * (found.window.start + found.window.size)
    assert tilted[(losses < bottom) | (losses >= top)].sum() <= found.outside * tilted.sum()
    # a window too small for it grows to twice its size, and says what is left out
    narrow = Window(start=0, size=16, up=6.0, down=-6.0)
    found = tilted_sum(some_parts(), spacing=0.1, theta=0.7, window=narrow, outside=outside)
    assert found.window.size <= 32
    assert found.outside > math.exp(-6.5)


@pytest.mark.parametrize("beyond", [-1, 16])
def test_the_first_point_outside_the_window_counts_in_full(beyond):
    """A share of one half there and a large tilt make Chernoff's bound sharp."""
    masses = np.zeros(30)
    masses[[8 + beyond, 15]] = 0.5  # the window is 8 .. 23
    cells = [Cells(start=0, masses=masses, count=1)]
    for up in (200.0, 500.0):
        window = Window(start=8, size=16, up=up, down=-up)
        found = tilted_sum(cells, spacing=0.1, theta=1e-9, window=window)
        assert found.outside == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("count", "n_parts"), [(1, 1), (1, 3), (50, 1), (10**6, 1)])
@pytest.mark.parametrize("rare", [0.4, 0.01, 1e-9])
def test_a_sums_error_is_at_least_what_its_transforms_may_do(count, n_parts, rare):
    """Each transform may add c log2(n) eps of the mass that was transformed: of all but the largest cell's."""
    size = 64
    cells = [Cells(start=3, masses=np.array([1.0 - rare, rare]), count=count)] * n_parts
    window = Window(start=round((3.0 + rare) * count * n_parts) - 30, size=size, up=400.0, down=-400.0)
    found = tilted_sum(cells, spacing=1e-6, theta=1.0, window=window)
    frequencies = np.fft.fftfreq(size)
    modulus = np.abs(1.0 - rare + rare * np.exp(2j * math.pi * frequencies)) ** (count * n_parts)
    forward = 8.0 * EPS * 6.0
    wanted = math.sqrt(np.mean((modulus * count * n_parts * forward * rare) ** 2))
    assert wanted <= found.spread <= 3 * wanted + 40 * EPS
    assert forward * np.mean(modulus) <= found.each <= 3 * forward * np.mean(modulus)
    assert found.relative >= 8.0 * EPS * count * n_parts


def test_the_rounding_of_large_exponents_is_counted():
    """Exp of theta h k and of what normalises it may each be off by eps times their size."""
    for count, n_parts in ((1, 1), (1, 3), (50, 1)):
        far = [Cells(start=10**6, masses=np.array([1.0]), count=count)] * n_parts
        window = Window(start=10**6 * count * n_parts - 30, size=64, up=400.0, down=-400.0)
        for spacing, theta in ((0.1, 1.0), (4.0, 0.025)):
            found = tilted_sum(far, spacing=spacing, theta=theta, window=window)
            assert found.outside >= count * n_parts * EPS * 1e5
            assert found.relative >= count * n_parts * EPS * 1e5


def test_frequencies_without_mass_have_errors_like_all_others():
    """A smooth sum: nearly all of its transform is rounding, and is counted as such."""
    ks = np.arange(-300, 301)
    masses = np.exp(-0.5 * (ks / 40.0) ** 2)
    cells = Cells(start=-300, masses=masses / masses.sum(), count=1)
    window = Window(start=-512, size=1024, up=4.0, down=-4.0)
    found = tilted_sum([cells], spacing=0.1, theta=0.0, window=window)
    assert np.sum(np.abs(found.tilted[212:813] - cells.masses)) <= l1_error(found)
    # c log2(n) eps for the transform: at every frequency as at the first, so also in the l2 norm of the sum
    assert 80.0 * EPS <= found.spread <= 160.0 * EPS


@pytest.mark.parametrize("size", [1e-14, 1e-6, 1e-3, 0.3, 0.499, 0.501, 0.9, 1.0])
def test_logarithms_near_one_are_as_accurate_as_they_say(size):
    mp.mp.dps = 40
    angles = np.random.default_rng(1).uniform(-math.pi, math.pi, 60)
    excess = np.append(size * np.exp(1j * angles), [size, -0.999 * size])
    found, error = fourier._log(excess)
    for value, log_value, bound in zip(excess, found, error, strict=True):
        truth = mp.log(1 + mp.mpc(complex(value)))
        assert abs(mp.mpc(complex(log_value)) - truth) <= bound
    assert np.all(error <= 60.0 * EPS * max(size, 1e-300) if size < 0.5 else error <= 1e-13)
    zero, _ = fourier._log(np.array([-1.0 + 0j]))  # a frequency that no mass has
    assert np.all(np.exp(zero.real) <= 1.01e-300)


def test_no_mass_is_negative_where_only_q_has_any():
    found = one_cell(0.0, 0.5, [0.2, 0.2], [0.3, 0.299], [0.0, 0.0])
    assert np.all(found.cells.masses >= 0.0)
    assert found.cells.masses.tolist() == pytest.approx([1.0, 0.0])  # e^0.5 times 0.299 is more than 0.2
    assert found.infinite == 0.0


# ---- bounds of epsilon and delta, read from sums written out by hand; their errors are made large enough to see

SPACING, START, SIZE = 0.1, -15, 60
POINTS = START + np.arange(SIZE)


def some_masses(seed=3):
    shape = np.exp(-0.5 * ((POINTS - 6.0) / 9.0) ** 2) * (1.0 + np.random.default_rng(seed).random(SIZE))
    return shape / shape.sum()


def as_sum(masses, theta, error=0.0, start=START):
    ks = start + np.arange(len(masses))
    log_scale = math.log(np.sum(masses * np.exp(theta * SPACING * ks)))
    tilted = masses * np.exp(theta * SPACING * ks - log_scale)
    window = Window(start=start, size=len(masses), up=1.0, down=-1.0)
    return TiltedSum(window=window, tilted=tilted, log_scale=log_scale, outside=error)


def place_of(total, theta):
    return Place(pairs=(), theta=theta, spacing=SPACING, window=total.window, extent=Extent(t=0.0))


def upper_of(masses, theta, *, error=0.0, infinite=0.0, start=START):
    total = as_sum(masses, theta, error, start)
    return UpperSum(place=place_of(total, theta), total=total, infinite=infinite)


def more_at(masses, theta, share, index):
    """Masses and points with a share of the tilted total added at one point, outside the window too."""
    total = as_sum(masses, theta)
    points = np.append(POINTS, START + index)
    extra = share * math.exp(total.log_scale - theta * SPACING * (START + index))
    return np.append(masses, extra), points


def upper_delta(sums, epsilon):
    return float(bounds.upper_delta(sums, np.array([epsilon]))[0])


def epsilon_where(delta_of, delta):
    """The least epsilon >= 0 at which a falling delta_of is at most delta."""
    return 0.0 if delta_of(0.0) <= delta else bisected(lambda epsilon: delta_of(epsilon) <= delta, 0.0, 50.0)


DELTAS = (0.6, 0.2, 0.03, 1e-3, 1e-7, 1e-12)
THETAS = (0.3, 2.0, 11.0, 60.0)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("infinite", [0.0, 5e-8])
def test_upper_bounds_are_those_of_the_sum(theta, infinite):
    masses = some_masses()
    sums = upper_of(masses, theta, infinite=infinite)

    def delta_of(epsilon):
        return hockey_stick(masses, SPACING * POINTS, epsilon) + infinite

    for delta in DELTAS:
        if delta <= infinite:
            assert bounds.upper_epsilon(sums, delta) == math.inf
            continue
        truth = epsilon_where(delta_of, delta)
        found = bounds.upper_epsilon(sums, delta)
        assert truth - 1e-12 <= found <= truth + 1e-9
    for epsilon in (0.0, 0.05, 0.1, 1.0, 1.23, 3.0):
        truth = delta_of(epsilon)
        assert truth * (1 - 1e-13) <= upper_delta(sums, epsilon) <= truth * (1 + 1e-9)
    assert bounds.upper_epsilon(upper_of(masses, theta, infinite=1e-3), 1e-3) == math.inf
    assert upper_delta(sums, SPACING * (POINTS[-1] + 2)) <= infinite + 1e-300  # nothing lies outside


@pytest.mark.parametrize("theta", THETAS)
def test_upper_bounds_survive_any_error_that_the_sum_admits(theta):
    masses, share = some_masses(), 1e-3
    sums = upper_of(masses, theta, error=share)
    for index in range(-2, SIZE + 3):
        true, points = more_at(masses, theta, share, index)
        just_above = hockey_stick(true, SPACING * points, SPACING * (START + index - 0.98))
        for delta in (0.3, 0.05, 1e-3, max(1e-12, min(0.99, just_above))):
            truth = epsilon_where(lambda e, t=true, p=points: hockey_stick(t, SPACING * p, e), delta)
            assert bounds.upper_epsilon(sums, delta) >= truth - 1e-12
        for epsilon in (0.0, 0.42, 0.5, 1.91, 3.1, max(0.0, SPACING * (START + index - 0.98))):
            truth = hockey_stick(true, SPACING * points, epsilon)
            assert upper_delta(sums, epsilon) >= min(1.0, truth) * (1 - 1e-12)


@pytest.mark.parametrize("theta", [2.0, 60.0])
def test_upper_bounds_survive_rounding_of_their_sums(monkeypatch, theta):
    """With an eps of 1e-7 every mass may be twice (size + exponent) eps larger than it was summed."""
    monkeypatch.setattr(bounds, "EPS", 1e-7)
    masses = some_masses()
    sums = upper_of(masses, theta)
    exponent = abs(sums.total.log_scale) + theta * SPACING * float(np.max(np.abs(POINTS)))
    true = masses * (1.0 + 2e-7 * (SIZE + exponent))
    for epsilon in SPACING * np.arange(0.02, POINTS[-1] - 1, 0.48):
        delta = hockey_stick(true, SPACING * POINTS, epsilon)
        assert upper_delta(sums, epsilon) >= min(1.0, delta) * (1 - 1e-12)
        assert bounds.upper_epsilon(sums, delta) >= epsilon - 1e-12


def test_a_window_that_begins_beyond_epsilon_proves_its_own_begin_only():
    ahead = upper_of(np.array([0.2, 0.1, 0.1]), 1.0, start=20)
    assert bounds.upper_epsilon(ahead, 0.9) == pytest.approx(2.0, rel=1e-12)
    assert upper_delta(ahead, 1.99) == 1.0
    assert upper_delta(ahead, 2.0) == 1.0  # as rounded it may be less than the first point
    assert upper_delta(ahead, 2.05) < 0.2
    negative = upper_of(np.array([0.2, 0.1, 0.1]), 1.0, start=-20)
    assert bounds.upper_epsilon(negative, 0.9) == 0.0
    # the last point proves that nothing lies above it, unless an error might
    assert bounds.upper_epsilon(ahead, 1e-9) == pytest.approx(2.2, abs=1e-6)
    assert bounds.upper_epsilon(upper_of(np.array([0.2, 0.1]), 1.0, start=20, error=0.5), 1e-9) == math.inf


def best_threshold(p, q_scaled, points, value):
    """The best threshold's value, from the masses of P and of Q."""
    q = q_scaled * np.exp(-SPACING * points)
    order = np.argsort(points)
    above_p, above_q = (np.cumsum(mass[order][::-1])[::-1] for mass in (p, q))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nanmax(value(above_p, above_q)))


def threshold_epsilon(p, q_scaled, points, delta):
    return max(0.0, best_threshold(p, q_scaled, points, lambda a, b: np.log(np.maximum(a - delta, 0.0) / b)))


def threshold_delta(p, q_scaled, points, epsilon):
    return max(0.0, best_threshold(p, q_scaled, points, lambda a, b: a - math.exp(epsilon) * b))


def lower_of(p, q_scaled, theta, p_error=0.0, q_error=0.0):
    first, second = as_sum(p, theta, p_error), as_sum(q_scaled, theta, q_error)
    return LowerSums(place=place_of(first, theta), p=first, q=second)


@pytest.mark.parametrize("theta", THETAS)
def test_lower_bounds_are_those_of_the_best_threshold(theta):
    p, q_scaled = some_masses(), 1.4 * some_masses(4)
    sums = lower_of(p, q_scaled, theta)
    for delta in DELTAS:
        truth = threshold_epsilon(p, q_scaled, POINTS, delta)
        found = bounds.lower_epsilon(sums, delta)
        assert truth - 1e-6 <= found <= truth + 1e-12
        assert found > 0.0 or delta > 0.1
    for epsilon in (0.0, 0.05, 1.0, 1.23, 3.0):
        truth = threshold_delta(p, q_scaled, POINTS, epsilon)
        assert truth * (1 - 1e-6) <= bounds.lower_delta(sums, epsilon) <= truth * (1 + 1e-12)
    assert bounds.lower_epsilon(sums, 0.9999) == 0.0
    assert bounds.lower_epsilon(lower_of(0.5 * p, q_scaled, theta), 0.6) == 0.0
    assert bounds.lower_delta(sums, 9.0) == 0.0


@pytest.mark.parametrize("theta", THETAS)
def test_lower_bounds_survive_any_error_that_the_sums_admit(theta):
    p, q_scaled, share = some_masses(), 1.4 * some_masses(4), 1e-3
    for index, which in itertools.product(range(0, SIZE, 3), ("p", "q")):
        # P computed with too much at one point, or Q with less there than it has
        more, points = more_at(p if which == "p" else q_scaled, theta, share, index)
        true_p, true_q = np.append(p, 0.0), np.append(q_scaled, 0.0)
        if which == "p":
            found = lower_of(p + np.bincount([index], [more[-1]], SIZE), q_scaled, theta, p_error=share)
        else:
            found, true_q = lower_of(p, q_scaled, theta, q_error=share), more
        for delta in (0.3, 0.05, 1e-3):
            assert bounds.lower_epsilon(found, delta) <= threshold_epsilon(true_p, true_q, points, delta) + 1e-12
        for epsilon in (0.0, 0.42, 1.91, 3.1):
            truth = threshold_delta(true_p, true_q, points, epsilon)
            assert bounds.lower_delta(found, epsilon) <= truth * (1 + 1e-12)


def test_the_slack_covers_running_sums_and_the_units_exponent():
    """Two eps a step, and two eps of each of the exponent's terms; the unit itself is exact at a known point."""
    theta, n = 30.0, 50  # losses -100 to -95.1
    total = TiltedSum(
        window=Window(start=-1000, size=n, up=1.0, down=-1.0), tilted=np.full(n, 1.0 / n), log_scale=-70.0, outside=1e-9
    )
    tails = bounds._Running(total, place_of(total, theta)).within(0, 1)
    assert np.all(tails.slack >= 1e-9 + 2.0 * EPS * (n + 70.0 + 30.0 * 100.0) * tails.mass)
    np.testing.assert_allclose(tails.loss, SPACING * (np.arange(n) - 1000), rtol=1e-15)
    np.testing.assert_allclose(tails.log_unit, -70.0 - 3.0 * (np.arange(n) - 1000.0), rtol=1e-14)
    assert tails.slack[-1] <= 1e-9 + 1e-11


@pytest.mark.parametrize(
    ("scale", "delta"),
    [
        (40.29518174782092, 1.4565125919757189e-12),
        (0.5073265957796602, 3.339456822994724e-13),
        (0.06373608461580248, 9.937094683247361e-10),
        *((scale, delta) for scale in (0.05, 0.3, 2.0, 60.0) for delta in (1e-14, 1e-9, 1e-3)),
    ],
)
def test_bounds_hold_at_the_largest_loss_beyond_which_nothing_lies(scale, delta):
    """Laplace noise's loss ends at 1 / b; delta(eps) = 1 - exp((eps - 1 / b) / 2) below it."""
    event, add = laplace(scale), Adjacency.ADD_OR_REMOVE_ONE
    truth = max(0.0, 1.0 / scale + 2.0 * math.log1p(-delta))
    found = numerical.epsilon_interval(event, delta, adjacency=add)
    assert found.lower <= truth * (1 + 1e-12) <= found.upper * (1 + 2e-12)
    assert found.upper - found.lower <= 1e-3 * max(1.0, truth)
