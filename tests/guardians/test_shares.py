"""Shares: they add up to the last unit, and any of them but all are uniform, whatever was shared."""

import math
import multiprocessing

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import kstest

import privbo as pb
from accountant import epsilon_table
from accountant.errors import EventError
from accountant.events import SLACK, Adjacency, compose, of_noises
from privbo.door.clipping import clip_rows
from privbo.door.noise import SecureNoise, keystream
from privbo.door.shares import expand, joined, own_units, share_sizes, split, sum_shares
from privbo.door.sums import lattice_sums
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.accountant.builders import gaussian, laplace, poisson
from tests.builders import Changed
from tests.guardians.test_guardian import DIM, REQUEST, N, Silence, circle, committee, mechanism


@given(
    arrays.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(3, 5))),
    st.integers(2, 5),
)
def test_sums_of_shares_are_shares_of_the_sum_whatever_wraps(units, n_guardians):
    """Also with four entries, where a row is as long as a seed."""
    n_entries = units.shape[1]
    shares = split(units, n_guardians)
    sums = [sum_shares((one[g] for one in shares), place=g, n_entries=n_entries) for g in range(n_guardians)]
    with np.errstate(over="ignore"):
        assert joined([s.view(np.int64) for s in sums]).tolist() == units.sum(axis=0).tolist()
    assert [tuple(map(len, one)) for one in shares] == [share_sizes(n_guardians, n_entries)] * len(units)


def test_a_secret_is_shared_among_two_or_more() -> None:
    with pytest.raises(ConfigurationError, match="two or more"):
        split(np.zeros((1, 2), dtype=np.int64), 1)
    for place in (0, 1):
        with pytest.raises(ConfigurationError, match="a share of 17 bytes"):
            sum_shares([bytes(17)], place=place, n_entries=2)


def test_a_seed_expands_into_the_stream_of_the_kept_library() -> None:
    seed = bytes(range(32))
    assert expand(seed, 5).tobytes() == keystream(seed, 40)
    # RFC 8439, A.1, test vector 1: key, counter and nonce of zeros.
    assert expand(bytes(32), 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_contributions_are_those_of_the_door_to_the_last_unit() -> None:
    rows = np.random.default_rng(4).normal(size=(N, DIM)) * 10
    rows[2] = np.nan
    made, who = mechanism(REQUEST), np.arange(N)
    everybody = np.ones((1, N), dtype=bool)
    expected = lattice_sums(REQUEST.weights, clip_rows(rows, made.applied_bound), everybody, made.grid_step())
    found = own_units(made, REQUEST, rows, who, Silence(0))
    assert found.sum(axis=0).tolist() == expected.ravel().tolist()
    assert not found[2].any()
    some = own_units(made, REQUEST, rows[[5, 0]], who[[5, 0]], Silence(0))
    assert some.tolist() == found[[5, 0]].tolist()


def test_every_client_draws_its_own_coin_at_the_plans_rate() -> None:
    made = mechanism(REQUEST, sample_rate=0.25)
    rows = np.ones((N, DIM))

    class Coins(Silence):
        def coins(self, shape: tuple[int, ...], rate: float) -> np.ndarray:
            assert (shape, rate) == ((N,), 0.25)
            return np.array([True, False] * (N // 2))

    units = own_units(made, REQUEST, rows, np.arange(N), Coins(0))
    assert [bool(row.any()) for row in units] == [True, False] * (N // 2)


# --- a view of all guardians but one --------------------------------------------------------------


@pytest.mark.parametrize("secret", [0, 1, -1, 2**62, 123456789])
def test_the_view_of_any_guardian_is_uniform_whatever_was_shared(secret: int) -> None:
    """A share is the secret less ChaCha20's stream of its own seed, word by word, or that seed."""
    shares = split(np.full((64, 512), secret, dtype=np.int64), 2)
    masked = np.frombuffer(b"".join(row for row, _ in shares), dtype="<u8").astype(np.uint64)
    streams = np.frombuffer(b"".join(keystream(seed, 4096) for _, seed in shares), dtype="<u8")
    assert set((masked + streams).view(np.int64).tolist()) == {secret}
    assert len({seed for _, seed in shares}) == 64


def seeds() -> set[bytes]:
    return {seed for one in split(np.zeros((2000, 1), dtype=np.int64), 3) for seed in one[1:]}


def test_no_seed_occurs_twice_also_in_a_process_that_was_forked() -> None:
    first = seeds()
    with multiprocessing.get_context("fork").Pool(1) as forked:
        assert len(first | seeds() | forked.apply(seeds)) == 3 * 4000


# ---- the price of sums of several guardians' noises, and the noise they are

PROBLEM = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=40)


def plan(**privacy) -> object:
    return pb.plan(PROBLEM, pb.DPFTSDE(n_features=8), privacy=pb.Privacy(**privacy), rounds=10)


def test_a_release_has_the_noise_of_every_guardian() -> None:
    """A million draws: the variance is known to .14 %, so 1 % is seven standard errors (false alarm below 1e-11)."""
    request = Request(dim=1000, clipping_norm=3.0, weights=REQUEST.weights)
    noise = Changed(SecureNoise(), name="simulation")  # the ledger of these tests is one of simulations
    noise.stream = lambda label: noise
    guardians = circle(2, noise=lambda place: noise)
    made, one = mechanism(request), mechanism(request).grid_scale()
    drawn = np.concatenate([joined([g.noise.gaussian((2000,), one) for g in guardians.values()]) for _ in range(500)])
    assert len(drawn) == 10**6
    assert np.var(drawn) == pytest.approx(2 * (one**2 + 1 / 12), rel=0.01)
    assert made.noise_stddev() == pytest.approx(math.sqrt(2) * one * made.grid_step(), rel=1e-12)
    assert kstest(drawn[::10] / (one * math.sqrt(2)), "norm").pvalue > 1e-7
    assert abs(np.var(drawn[: 10**5] * 0.95) / (2 * one**2) - 1) > 0.05  # a planted fault: 5 % too little
    found = committee(guardians).gather(0, made, request, np.zeros((6, 1000)))
    assert np.std(found) == pytest.approx(math.sqrt(2) * one, rel=0.1)


# --- prices -----------------------------------------------------------------------------------------


def test_fewer_known_noises_cost_less_and_the_slack_is_on_the_safe_side() -> None:
    event = compose([(gaussian(3.0), 5), (poisson(0.2, 2.0), 3)])
    assert of_noises(event, counted=2, unknown=2) == event
    for part, (scaled, count) in zip(event.parts, of_noises(event, counted=1, unknown=3).parts, strict=True):
        exact = part[0].noise_multiplier * math.sqrt(3)
        assert count == part[1]
        assert exact * (1 - 2 * SLACK) < scaled.noise_multiplier < exact
    with pytest.raises(EventError, match="no sum of guardians' noises"):
        of_noises(laplace(1.0), counted=1, unknown=2)
    with pytest.raises(EventError, match=">= 1"):
        of_noises(event, counted=0, unknown=2)


def test_a_plan_names_three_prices_and_calibrates_the_dearest() -> None:
    found = plan(epsilon=2.0, trust="guardians", guardians=3)
    coalition, guardian, outsiders = found.exposures(1e-5)
    assert (coalition.unknown, guardian.unknown, outsiders.unknown) == (1, 2, 3)
    assert 1.99 < coalition.epsilon <= 2.0
    assert coalition.epsilon > guardian.epsilon > outsiders.epsilon
    z = found.noise_multiplier
    for each in (guardian, outsiders):
        event = (gaussian(z * math.sqrt(each.unknown)), 10)
        exact = min(epsilon_table(compose([event]), 1e-5, adjacency=Adjacency.ZERO_OUT).values())
        assert exact <= each.epsilon < exact * (1 + 1e-6)
    assert plan(epsilon=2.0).exposures(1e-5) == ()


def test_noise_is_calibrated_for_whom_it_was_asked() -> None:
    both = plan(epsilon=2.0, trust="guardians", against="outsiders")
    found = {each.against: each.epsilon for each in both.exposures(1e-5)}
    assert 1.99 < found["outsiders"] <= 2.0 < found["coalition"]
    alone = plan(epsilon=2.0)
    (mine,), (theirs,) = both.mechanisms, alone.mechanisms
    assert mine.noise_stddev() == pytest.approx(theirs.noise_stddev(), rel=1e-9)
    (cautious,) = plan(epsilon=2.0, trust="guardians").mechanisms
    assert cautious.noise_stddev() == pytest.approx(math.sqrt(2) * theirs.noise_stddev(), rel=1e-9)
    assert cautious.grid_step() == theirs.grid_step()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"guardians": 2}, "belong to trust='guardians'"),
        ({"against": "outsiders"}, "belong to trust='guardians'"),
        ({"trust": "guardians", "guardians": 1}, "privacy.guardians=1"),
        ({"trust": "guardians", "sampling": "fixed-size", "sample_rate": 0.5}, "draws its own coin"),
        ({"trust": "guardians", "sampling": "random-allocation", "participations": 2}, "draws its own coin"),
        ({"trust": "guardians", "adaptive_clipping": pb.AdaptiveClipping(count_stddev=10.0)}, "by the server's word"),
        ({"trust": "guardians", "channel": "anonymous"}, "ciphertexts of one size"),
    ],
)
def test_what_guardians_cannot_carry_is_refused_with_its_reason(settings: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        pb.Privacy(epsilon=2.0, **settings)
