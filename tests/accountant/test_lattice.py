"""One release's lattice masses against the pair they stand for.

What rounding does is too small to see, so it is made large: tails that may lie off by a percent do, in random
directions. What the arithmetic itself loses is looked for at forty digits.
"""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from accountant.mechanisms.pair import EPS, Pair, Tails
from accountant.tight import fourier
from accountant.tight.fourier import Window, tilted_sum
from accountant.tight.lattice import Cells, Extent, lower_cells, upper_cells

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
    """The same tails, each wrong by up to the stated relative error, in directions drawn or all alike."""
    rng = np.random.default_rng(seed)
    if seed < 2:
        return lambda tail: tail * (1.0 + error * (-1.0) ** seed)
    return lambda tail: tail * (1.0 + error * rng.choice([-1.0, 1.0], size=tail.shape))


def cell_masses(above, below):
    """Mass between consecutive edges, from the smaller of both tails."""
    return np.where(below[1:] < 0.5, below[1:] - below[:-1], above[:-1] - above[1:]).tolist()


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
    for seed in range(20 if error else 1):
        pair = pair_of(lambda edges, s=seed: gaussian_tails(edges, moved(s, error), error / (1 - error)))
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
    for seed in range(20 if error else 1):
        pair = pair_of(lambda edges, s=seed: gaussian_tails(edges, moved(s, error), error / (1 - error)), low, high)
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


def test_a_cell_allows_for_the_rounding_of_its_edge_and_its_chord():
    """At losses of 400 an edge is off by up to a hundred eps; so is what is taken off the mass for Q."""
    mp.mp.dps = 60
    spacing, p = 0.01, 0.25
    for k in range(40_000, 40_060):
        share = p * math.exp(-0.3 * spacing - spacing * k)
        found = one_cell(spacing * k, spacing, [p, 0.0], [share, 0.0], [0.0, 0.0])
        exact = (mp.mpf(p) - mp.exp(mp.mpf(spacing) * k) * mp.mpf(share)) / -mp.expm1(-mp.mpf(spacing))
        assert mp.mpf(float(found.cells.masses[1])) >= exact


def test_every_cell_allows_for_the_rounding_of_its_own_edge():
    """Four cells, each a hundred wide: what lies at 300 errs by what 300 rounds to, not by what 0 does."""
    mp.mp.dps = 60
    p = 0.25
    for spacing in 100.0 + 0.137 * np.arange(60):
        share = p * math.exp(-1e-3 - 3 * spacing)
        found = one_cell(0.0, spacing, [p] * 4 + [0.0], [share] * 4 + [0.0], [0.0] * 5)
        exact = (mp.mpf(p) - mp.exp(3 * mp.mpf(spacing)) * mp.mpf(share)) / -mp.expm1(-mp.mpf(spacing))
        assert mp.mpf(float(found.cells.masses[4])) >= exact


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
    for k, mass, scaled in zip(ks, cell_masses(above, below), lower.q_scaled.masses, strict=True):
        assert mp.mpf(float(scaled)) >= mp.mpf(mass) * mp.exp(mp.mpf(spacing) * int(k))


@pytest.mark.parametrize(("low", "high"), [(-30.0, 0.6), (-0.6, 30.0)])
def test_what_a_release_leaves_out_counts_as_often_as_it_is_made(low, high):
    def once(count):
        pair = pair_of(gaussian_tails, low, high)
        return upper_cells(pair, count, spacing=0.5, extent=Extent(t=1.0))

    single, many = once(1), once(7)
    assert many.cells.count == 7
    assert many.infinite == pytest.approx(7 * single.infinite, rel=1e-12)
    top = 0.5 * (single.cells.start + len(single.cells.masses) - 1)
    assert high + 0.5 <= top < high + 1.0
    assert single.infinite == pytest.approx(gaussian_delta(top), rel=1e-9)
    doubtful = pair_of(lambda e: gaussian_tails(e, error=np.linspace(0.0, 0.5, len(e))), low, high)
    wrong = upper_cells(doubtful, 1, spacing=0.5, extent=Extent(t=1.0))
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


@pytest.mark.parametrize("cap", [-0.5, 0.5, 2.0])
def test_a_capped_lattice_loses_nothing_at_its_cap_and_is_constant_beyond(cap):
    """The last cell reaches to infinity: delta is a chord of dQ/dP there, which is exact at both of its ends."""
    pair, spacing = pair_of(gaussian_tails), 0.25
    upper = upper_cells(pair, 1, spacing=spacing, extent=Extent(t=1.0, cap=cap))
    cap += spacing
    assert spacing * (upper.cells.start + len(upper.cells.masses) - 1) == cap
    assert lattice_delta(upper, spacing, cap) == pytest.approx(gaussian_delta(cap), rel=1e-9)
    for epsilon in np.arange(-3.0, 6.0, spacing / 3):
        found = lattice_delta(upper, spacing, epsilon)
        assert found >= gaussian_delta(epsilon) * (1 - 1e-12)
        if epsilon >= cap:
            assert found == pytest.approx(gaussian_delta(cap), rel=1e-9)
    forgotten = lattice_delta(upper, spacing, cap) - upper.infinite
    assert forgotten < 0.5 * gaussian_delta(cap)  # planted fault: what lies beyond the cap is left out


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
        assert error - np.exp(fourier_outside(parts, spacing, theta, found.window)).sum() <= 1e-11
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


def fourier_outside(parts, spacing, theta, window):
    """Logs of both Chernoff bounds, from direct sums."""
    low, masses = convolved(parts)
    losses = spacing * (low + np.arange(len(masses)))

    def log_mean(tilt):
        return math.log(np.sum(masses * np.exp(tilt * losses)))

    top, bottom = spacing * (window.start + window.size), spacing * (window.start - 1)
    above = log_mean(theta + window.up) - log_mean(theta) - window.up * top
    below = log_mean(theta + window.down) - log_mean(theta) - window.down * bottom
    return np.minimum(np.array([above, below]), 0.0)


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
