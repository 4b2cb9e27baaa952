"""What the paper's landmine runs really cost, priced from the weights its server plans."""

import warnings

import pytest

import privbo as pb

PROBLEM = pb.Problem(
    space={"C": pb.Real(1e-4, 10.0), "gamma": pb.Real(0.01, 10.0)},
    objective=lambda client, params: 0.0,  # never called: a plan touches no data
    n_clients=29,
)


# Source: measured from the authors' code (true cost of the paper's runs, tight accountant,
# heterogeneous rounds, T = 60, delta = 29^-1.1); the paper prints 15.17, 5.14 and 3.75.
@pytest.mark.parametrize(("rate", "z", "epsilon"), [(0.35, 1.0, 6.20), (0.35, 2.0, 2.00), (0.10, 1.0, 1.19)])
def test_true_price_of_the_papers_noise(rate, z, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # delta = "paper" warns, as it should
        privacy = pb.Privacy(noise_multiplier=z, sample_rate=rate, delta="paper", calibration="paper")
        terms = pb.plan(PROBLEM, pb.DPFTSDE.paper(), privacy=privacy, rounds=60)
        found = terms.epsilon()["tight"]
    assert terms.releases == 60
    assert found == pytest.approx(epsilon, abs=0.005)
