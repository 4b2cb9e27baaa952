"""Noise: its scale, its shape, its precision, its generator, and that nothing repeats it.

Every statistical test here fails a sound source with a probability below 1e-7.
"""

import os
import pickle

import mpmath
import numpy as np
import pytest
from scipy import stats

from privbo.door import sums
from privbo.door.clipping import clip_rows
from privbo.door.noise import ExactNoise, SecureNoise, SimulatedNoise, keystream, lattice_gaussian
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.builders import mechanism_for

DRAWS = 200_000
SCALE = 1.3 * 2**16


def exact() -> ExactNoise:
    pytest.importorskip("opendp")
    return ExactNoise()


SOURCES = [
    pytest.param(SecureNoise, id="secure"),
    pytest.param(lambda: SimulatedNoise(7), id="simulation"),
    pytest.param(exact, id="exact", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("source", SOURCES)
def test_the_scale_is_right_the_shape_gaussian_and_draws_are_independent(source) -> None:
    sample = source().gaussian((DRAWS // 4, 4), SCALE) / SCALE
    # The sample standard deviation of 2e5 normals has a relative error of 0.158 %, so 1 % is 6.3 of them.
    found = np.sqrt(np.mean(sample**2))
    assert [abs(found * fault - 1) < 0.01 for fault in (0.98, 1.0, 1.02)] == [False, True, False]
    assert abs(sample.mean()) < 5.5 / DRAWS**0.5
    ordered = np.sort(sample.ravel())
    gap = np.abs(stats.norm.cdf(ordered) - (np.arange(DRAWS) + 0.5) / DRAWS).max()
    assert gap < np.sqrt(np.log(2 / 1e-7) / (2 * DRAWS))  # Dvoretzky, Kiefer, Wolfowitz, Massart
    # Correlations of 5e4 pairs, also of squares and with the next row, have standard error 0.0045; that of a number
    # with its own square has root 5 times that: x^3 - x has variance 10, and x^2 has 2.
    error = np.full((12, 12), 0.0045)
    error[range(4), range(8, 12)] = error[range(8, 12), range(4)] = 0.01
    leaning = sample + 0.07 * np.roll(sample, 1, axis=1)  # planted
    for rows, is_sound in ((sample, True), (leaning, False)):
        columns = np.concatenate((rows[:-1], rows[1:], rows[:-1] ** 2), axis=1)
        assert (np.abs(np.corrcoef(columns.T) - np.eye(12)) < 6.5 * error).all() == is_sound


def test_the_secure_transform_is_accurate_to_the_last_grid_unit() -> None:
    # docs/noise.md claims 2^-45 standard deviations, of which rounding is 2^-47 here: 2^-7 of a unit at scale 2^40.
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**64, (3, 1500), dtype=np.uint64)
    words[0, :6] = [0, 1, 2**64 - 1, 2**63, 2**20, 2**53]
    words[1, :6] = [0, 2**64 - 1, 2**64 - 1, 0, 5, 7]
    words[2, :6] = [0, 1, 2**64 - 1, 2**64 - 2, 2**62, 2**62 + 1]
    got = lattice_gaussian(words, 2.0**40)
    with mpmath.workprec(200):
        for i, (first, second, third) in enumerate(words.T.tolist()):
            t = (mpmath.mpf(first) + mpmath.mpf(second) / 2**64 + mpmath.mpf(1) / 2**65) / 2**64
            uniform = 1 - t / 2 if third & 1 else t / 2
            radius = mpmath.sqrt(-2 * mpmath.log(uniform)) * 2**40
            angle = 2 * mpmath.pi * (mpmath.mpf(third >> 11) + mpmath.mpf("0.5")) / 2**53
            for value, wanted in ((got[i], mpmath.cos(angle)), (got[i + 1500], mpmath.sin(angle))):
                assert abs(int(value) - radius * wanted) <= 0.5 + 2.0**-7, words[:, i]


def shares(outputs: np.ndarray) -> np.ndarray:
    """Share of outputs that are multiples of 2^j, for a range of j around their resolution."""
    exponents = 2.0 ** np.arange(-70, 10)
    return np.mean(np.fmod(outputs.astype(np.float64)[:, None], exponents) == 0, axis=0)


def precision_leaks(release, inputs: list[float]) -> bool:
    """Whether some event about trailing bits happens for one input and (almost) not for another."""
    found = [shares(release(x)) for x in inputs]
    # 20,000 outputs per input; a share is off by 0.036 with a probability below 1e-11 (Hoeffding).
    return max(float(np.abs(one - other).max()) for one in found for other in found) > 0.05


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [-6, 0, 7])
@pytest.mark.parametrize("source", SOURCES[:2])
def test_no_bit_pattern_tells_inputs_apart(source, k: int, dtype: type) -> None:
    n_draws = 20_000
    request = Request(dim=1, clipping_norm=float(max(2.0**k, 1.0)), weights=np.ones((1, 1)))
    mechanism = mechanism_for(request, noise_multiplier=1.0)
    noise = source()

    def release(x: float) -> np.ndarray:
        rows = clip_rows(np.array([[x]], dtype=dtype).astype(np.float64), mechanism.applied_bound)
        whole = np.ones((n_draws, 1), dtype=bool)
        return sums.noisy_sums(mechanism, request.weights, rows, whole, noise)[:, 0, 0].astype(dtype)

    def naive(x: float) -> np.ndarray:
        return dtype(x) + dtype(request.clipping_norm) * rng.normal(size=n_draws).astype(dtype)

    def sum_of_four(x: float) -> np.ndarray:
        four = rng.normal(size=(n_draws, 4)).astype(dtype) * dtype(request.clipping_norm)
        return dtype(x) + four.sum(axis=1) / dtype(2)

    rng = np.random.default_rng(1)
    inputs = [0.0, 1.0, 2.0**k]
    assert not precision_leaks(release, inputs)
    assert precision_leaks(naive, inputs)
    assert precision_leaks(sum_of_four, inputs)


# RFC 8439, appendix A.1, test vectors 1, 2 and 3: nonce 0, (key, block counter, key stream).
ZERO, ONE = bytes(32), bytes(31) + b"\x01"
KNOWN_ANSWERS = [
    (ZERO, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
    (ZERO, 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
    (ONE, 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
]


@pytest.mark.parametrize(("key", "block", "answer"), KNOWN_ANSWERS)
def test_the_generator_gives_the_known_answers(key: bytes, block: int, answer: str) -> None:
    assert keystream(key, 128)[64 * block :].hex().startswith(answer)


def in_child(draw) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, draw())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("source", [SecureNoise, exact])
def test_a_fork_a_copy_and_a_second_draw_repeat_nothing(source) -> None:
    noise = source()

    def draw() -> bytes:
        return noise.gaussian((64,), SCALE).tobytes() + noise.coins((64,), 0.5).tobytes()

    seen = {draw(), draw(), in_child(draw), in_child(draw)}
    assert len(seen) == 4
    if type(noise) is SecureNoise:
        twin = pickle.loads(pickle.dumps(noise))  # noqa: S301 (our own bytes)
        assert twin.gaussian((64,), SCALE).tobytes() != noise.gaussian((64,), SCALE).tobytes()
        assert not vars(noise)
    # The planted fault: numpy's generator repeats itself in a child.
    numpy_noise = SimulatedNoise(0)
    child = in_child(lambda: numpy_noise.gaussian((64,), SCALE).tobytes())
    assert child == numpy_noise.gaussian((64,), SCALE).tobytes()


@pytest.mark.parametrize("source", SOURCES[:2])
@pytest.mark.parametrize("rate", [0.001, 0.25, 0.5, 0.999])
def test_coins_show_their_rate(source, rate: float) -> None:
    heads = int(source().coins((DRAWS // 10, 10), rate).sum())
    low, high = stats.binom.ppf([5e-8, 1 - 5e-8], DRAWS, rate)
    assert low <= heads <= high
    assert not low <= stats.binom.ppf(0.5, DRAWS, rate) * 1.5 <= high


def test_coins_at_the_ends() -> None:
    for source in (SecureNoise(), SimulatedNoise(0)):
        assert source.coins((1000,), 1.0).all()
        assert not source.coins((1000,), 2.0**-70).any()


@pytest.mark.parametrize("source", SOURCES[:2])
def test_subsets_have_their_size_and_favour_nobody(source) -> None:
    chosen = source().subsets((DRAWS // 10, 7), 3)
    assert (chosen.sum(axis=1) == 3).all()
    n = len(chosen)
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], n, 3 / 7)
    assert ((low <= chosen.sum(axis=0)) & (chosen.sum(axis=0) <= high)).all()
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], n, 1 / 7)
    both = chosen.astype(int).T @ chosen.astype(int)
    assert all(low <= both[i, j] <= high for i in range(7) for j in range(i))


def test_impossible_draws_are_refused() -> None:
    for source in (SecureNoise(), SimulatedNoise(0)):
        for scale in (0.0, 2.0**9, 2.0**41, float("nan")):
            with pytest.raises(ConfigurationError):
                source.gaussian((2,), scale)
        with pytest.raises(ConfigurationError):
            source.subsets((1, 3), 4)
