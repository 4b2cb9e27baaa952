"""The table of all accountants, and the best one."""

from pathlib import Path

import pytest

import accountant
from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, PoissonSampledGaussian, compose, repeat
from accountant.tight import numerical

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
SAMPLED = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 4)


@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_every_accountant_stands_in_the_table_with_its_own_answer(adjacency):
    sampled = compose([SAMPLED, FixedSizeSampledGaussian(n_clients=9, sample_size=3, noise_multiplier=2.0)])
    wanted = {
        "moments": moments.epsilon(sampled, 1e-5, adjacency=adjacency),
        "renyi": renyi.epsilon(sampled, 1e-5, adjacency=adjacency),
        "tight": numerical.epsilon(sampled, 1e-5, adjacency=adjacency),
    }
    assert numerical.epsilon_table(sampled, 1e-5, adjacency=adjacency) == wanted
    assert list(wanted.values()) == sorted(wanted.values(), reverse=True)
    plain = Gaussian(noise_multiplier=2.0)
    table = numerical.epsilon_table(plain, 1e-5, adjacency=adjacency)
    assert list(table) == ["moments", "renyi", "tight", "gaussian_dp"]
    assert table["gaussian_dp"] == gaussian_dp.epsilon(plain, 1e-5, adjacency=adjacency) == table["tight"]


def test_no_name_of_the_package_becomes_a_module_once_its_home_was_loaded():
    """Python puts every loaded module into its package, where it would hide a function of the same name."""
    modules = {path.stem for path in Path(accountant.__file__).parent.iterdir()}
    assert modules & set(accountant.__all__) == {
        "calibrate",
        "dp_event",
        "envelope",
        "filters",
        "gaussian_dp",
        "moments",
        "renyi",
    }


def test_the_package_lists_its_names_and_no_others():
    assert dir(accountant) == sorted(accountant.__all__)
    assert all(getattr(accountant, name) is not None for name in accountant.__all__)
    assert accountant.numerical is numerical
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        accountant.nothing  # noqa: B018 (the access is the test)
