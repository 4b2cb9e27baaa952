"""The price of sums of several guardians' noises, and the noise they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kstest, norm

import privbo as pb
from accountant import Gaussian, PoissonSampledGaussian, epsilon_table
from accountant.errors import EventError
from accountant.events import SLACK, Adjacency, Laplace, compose, of_noises
from privbo.door.noise import SecureNoise
from privbo.door.shares import joined
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.builders import Changed
from tests.guardians.committees import REQUEST, circle, committee, mechanism

N = 40
PROBLEM = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=N)


def plan(**privacy) -> object:
    return pb.plan(PROBLEM, pb.DPFTSDE(n_features=8), privacy=pb.Privacy(**privacy), rounds=10)


# --- noises -----------------------------------------------------------------------------------------


def rounded(s: float, reach: int) -> np.ndarray:
    """Probabilities of a rounded Gaussian at -reach..reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(norm.cdf(edges / s))


def spread(s: float, k: int, reach: int, fine: int = 64) -> np.ndarray:
    """Probabilities of rint(N(0, k s^2) + k - 1 uniforms), by the density of Gaussian and k uniforms on a fine grid."""
    width = fine * (reach + k) + 1
    at = np.arange(-width, width + 1) / fine
    density = norm.pdf(at, scale=s * math.sqrt(k))
    box = np.r_[0.5, np.ones(fine - 1), 0.5] / fine  # the trapezoidal rule is exact to exp(-(2 pi s fine)^2) here
    for _ in range(k):
        density = np.convolve(density, box, mode="same")
    return density[(width - reach * fine) : (width + reach * fine + 1) : fine]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("s", [1.0, 1.5])
def test_a_sum_of_rounded_gaussians_is_a_blurred_gaussian_rounded_up_to_what_the_proof_allows(k: int, s: float) -> None:
    """At scales of one or two grid units, where the allowance can be seen; runs have 2^10 and more."""
    reach = math.ceil(12 * s * math.sqrt(k))
    one = rounded(s, 2 * reach)
    many = one
    for _ in range(k - 1):
        many = np.convolve(many, one)
    middle = len(many) // 2
    gap = np.abs(many[middle - reach : middle + reach + 1] - spread(s, k, reach))
    allowed = 3 * k * math.exp(-((math.pi * s) ** 2) / 2)
    assert gap.max() < allowed
    # Without the uniforms the two differ by far more than that: the allowance is not what makes this pass.
    plain = np.diff(norm.cdf((np.arange(-reach, reach + 2) - 0.5) / (s * math.sqrt(k))))
    if s > 1:
        assert np.abs(many[middle - reach : middle + reach + 1] - plain).max() > allowed


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
    event = compose(
        [(Gaussian(noise_multiplier=3.0), 5), (PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=2.0), 3)]
    )
    assert of_noises(event, counted=2, unknown=2) == event
    for part, (scaled, count) in zip(event.parts, of_noises(event, counted=1, unknown=3).parts, strict=True):
        exact = part[0].noise_multiplier * math.sqrt(3)
        assert count == part[1]
        assert exact * (1 - 2 * SLACK) < scaled.noise_multiplier < exact
    with pytest.raises(EventError, match="no sum of guardians' noises"):
        of_noises(Laplace(scale_multiplier=1.0), counted=1, unknown=2)
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
        event = (Gaussian(noise_multiplier=z * math.sqrt(each.unknown)), 10)
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
