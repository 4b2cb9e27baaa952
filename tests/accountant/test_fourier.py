"""Sums of lattice variables against direct convolution, and their stated error against what may go wrong."""

import math

import mpmath as mp
import numpy as np
import pytest

from accountant.mechanisms.pair import EPS
from accountant.tight import fourier
from accountant.tight.fourier import Window, tilted_sum
from accountant.tight.lattice import Cells


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


def test_a_million_rare_losses_are_summed_to_the_last_digits():
    """The sum of a million releases that lose something one time in a billion: a Poisson law, far into its tail."""
    rate, count = 1e-9, 10**6
    cells = Cells(start=0, masses=np.array([1.0 - rate, 0.0, rate]), count=count)
    theta, spacing = 20.0, 0.1
    window = Window(start=-16, size=64, up=20.0, down=-20.0)
    found = tilted_sum([cells], spacing=spacing, theta=theta, window=window)
    ks = np.arange(0, 9)
    mp.mp.dps = 50
    truth = [mp.binomial(count, int(k)) * mp.mpf(rate) ** int(k) * (1 - mp.mpf(rate)) ** (count - int(k)) for k in ks]
    masses = np.exp(found.log_scale - theta * spacing * 2 * ks) * found.tilted[16 + 2 * ks]
    np.testing.assert_allclose(masses[:3], np.array(truth[:3], dtype=float), rtol=1e-6)
    assert found.spread + found.each <= 1e-13
