"""Sums of lattice variables against direct convolution, and their stated error against what may go wrong."""

import math

import mpmath as mp
import numpy as np
import pytest

from accountant.tight import fourier
from accountant.tight.fourier import Window, tilted_sum
from accountant.tight.lattice import Cells
from accountant.tight.pairs import EPS


def convolved(parts):
    """Masses of the sum of all parts by direct convolution, and its first point."""
    total, start = np.ones(1), 0
    for part in parts:
        for _ in range(part.count):
            total, start = np.convolve(total, part.masses), start + part.start
    return start, total


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
    assert np.sum(np.abs(found.tilted - truth)) + gone <= 2.0 * found.error  # folded in, and missing
    assert np.sum(np.abs(found.tilted - truth)) <= found.error
    assert gone <= found.error
    if window == (-40, 100):
        assert np.sum(np.abs(found.tilted - truth)) <= 1e-14
        assert found.error - np.exp(fourier_outside(parts, spacing, theta, found.window)).sum() <= 1e-11


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
        assert found.error == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("count", "n_parts"), [(1, 1), (1, 3), (50, 1)])
def test_a_sums_error_is_at_least_what_its_transforms_may_do(count, n_parts):
    """A point mass has modulus 1 at all n frequencies; each transform may add c log2(n) eps there."""
    size = 64
    cells = [Cells(start=3, masses=np.array([1.0]), count=count)] * n_parts
    window = Window(start=3 * count * n_parts - 30, size=size, up=400.0, down=-400.0)
    one = 8.0 * EPS * 6.0
    wanted = size * (count * n_parts * (one + 4.0 * EPS) + one + 4.0 * EPS * n_parts)
    assert wanted <= tilted_sum(cells, spacing=0.1, theta=1.0, window=window).error <= 10 * wanted
    # exp of theta h k and of what normalises it may each be off by eps times their size
    far = [Cells(start=10**6, masses=np.array([1.0]), count=count)] * n_parts
    window = Window(start=10**6 * count * n_parts - 30, size=size, up=400.0, down=-400.0)
    for spacing, theta in ((0.1, 1.0), (4.0, 0.025)):
        steep = tilted_sum(far, spacing=spacing, theta=theta, window=window).error
        assert steep >= size * count * n_parts * 2.0 * EPS * 1e5


def test_frequencies_without_mass_have_errors_like_all_others():
    """A smooth sum: nearly all of its transform is rounding, and is counted as such."""
    ks = np.arange(-300, 301)
    masses = np.exp(-0.5 * (ks / 40.0) ** 2)
    cells = Cells(start=-300, masses=masses / masses.sum(), count=1)
    window = Window(start=-512, size=1024, up=4.0, down=-4.0)
    found = tilted_sum([cells], spacing=0.1, theta=0.0, window=window)
    assert np.sum(np.abs(found.tilted[212:813] - cells.masses)) <= found.error
    # c log2(n) eps for the transform and 4 eps for the tilt: at every frequency as at the first
    assert 1024 * (80.0 + 4.0) * EPS <= found.error <= 1e-9


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 100_000])
def test_powers_of_a_transform_are_as_accurate_as_they_say(count):
    mp.mp.dps = 40
    rng = np.random.default_rng(1)
    sizes = np.exp(-rng.random(60) / count * 20.0)
    values = sizes * np.exp(1j * rng.uniform(-math.pi, math.pi, 60))
    found, error = fourier._power(values, np.abs(values), count)
    error = np.broadcast_to(error, values.shape)
    for value, power, bound in zip(values, found, error, strict=True):
        truth = mp.mpc(complex(value)) ** count
        assert abs(mp.mpc(complex(power)) / truth - 1) <= bound
    if count > 1:  # modulus and angle enter count times, each off by eps of its size
        assert np.all(error >= EPS * count * (np.abs(np.log(sizes)) + math.pi))
    zero, _ = fourier._power(np.zeros(2, dtype=complex), np.zeros(2), count)
    assert np.all(np.abs(zero) <= 1e-300)
