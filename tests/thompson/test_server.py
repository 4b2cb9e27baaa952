import dataclasses

import numpy as np
import pytest

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.exploration import Exploration, Weighting
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Release, Server
from privbo.protocol.settings import read_settings
from privbo.protocol.space import Categorical, Space
from tests.thompson.conftest import setting


def _release(round_, shape=(1, 64)):
    return Release(round=round_, values=np.full(shape, float(round_)), noise_stddev=0.5, sequence=round_, head="")


def _asks(algorithm, where):
    server, found = algorithm.server(where), []
    while (ask := server.ask()) is not None:
        found.append(ask)
        shape = (algorithm.n_regions, algorithm.n_features)
        server.tell(None if ask.request is None else _release(ask.broadcast.round, shape))
    return found


def test_initial_points_answer_first_and_every_release_is_broadcast():
    asks = _asks(Variant(), setting(rounds=4))
    assert [ask.broadcast.round for ask in asks] == [0, 1, 2, 3, 4]
    assert [ask.request is not None for ask in asks] == [True, True, True, True, False]
    assert "vectors" not in asks[0].broadcast.arrays
    for ask in asks[1:]:
        assert (ask.broadcast.arrays["vectors"] == ask.broadcast.round - 1).all()
        assert ask.broadcast.arrays["noise_stddev"] == 0.5
    assert all(ask.broadcast.arrays["rounds"] == 4 for ask in asks)


@pytest.mark.parametrize(
    "algorithm",
    [
        Variant(n_regions=3, weighting=Weighting(hold=1, decay=3)),
        Variant.paper(),
        Variant(local_after=2),
        Variant().local(),
    ],
)
def test_the_plan_is_what_is_asked(algorithm):
    where = setting(rounds=5)
    planned = list(algorithm.server(where).plan())
    asked = [ask.request for ask in _asks(algorithm, where) if ask.request is not None]
    assert len(planned) == len(asked)
    for a, b in zip(planned, asked, strict=True):
        assert (a.dim, a.clipping_norm) == (b.dim, b.clipping_norm) == (algorithm.n_features, algorithm.bound)
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_allclose(a.weights.sum(axis=1), 1.0)


def test_the_plan_does_not_depend_on_the_public_seed():
    plans = [list(Variant.paper().server(setting(public_seed=seed)).plan()) for seed in (0, 1)]
    for a, b in zip(*plans, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)


@pytest.mark.parametrize(
    ("algorithm", "releases"),
    [
        (Variant(), 6),
        (Variant(local_after=3), 3),
        (Variant(local_after=99), 6),
        (Variant().local(), 0),
        (Variant(exploration=Exploration(scale=0.0)), 0),
    ],
)
def test_no_release_is_made_that_nobody_uses(algorithm, releases):
    where = setting(rounds=6)
    assert sum(1 for _ in algorithm.server(where).plan()) == releases
    assert sum(ask.request is not None for ask in _asks(algorithm, where)) == releases


def test_a_release_carries_the_weights_of_the_iteration_it_serves():
    algorithm = Variant(n_regions=2, weighting=Weighting(hold=1, decay=0))
    first, second, *_ = algorithm.server(setting(rounds=4)).plan()
    assert first.weights.max() > 0.3
    np.testing.assert_allclose(second.weights, 1 / 6)


def test_ask_repeats_until_told():
    server = Variant().server(setting())
    assert isinstance(server, Server)
    first, again = server.ask(), server.ask()
    assert first.broadcast.round == again.broadcast.round == 0
    np.testing.assert_array_equal(first.request.weights, again.request.weights)


def test_telling_something_that_was_not_asked_is_refused():
    with pytest.raises(ConfigurationError, match="release"):
        Variant().server(setting()).tell(None)
    with pytest.raises(ConfigurationError, match="release"):
        Variant().local().server(setting()).tell(_release(0))


@pytest.mark.parametrize(
    "change",
    [
        {"n_regions": 0},
        {"n_features": 7},
        {"n_features": 0},
        {"clipping_norm": 0.0},
        {"clipping_norm": -1},
        {"clipping_norm": float("nan")},
        {"lengthscale": -1.0},
        {"noise": 0.0},
        {"n_init": 0},
        {"local_after": -1},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        Variant(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"n_features": 3},
        {"refit_every": -1},
        {"fit_steps": 0},
        {"n_candidates": 0},
        {"noise_variance": 0.0},
        {"inflation": -1.0},
    ],
)
def test_impossible_own_models_are_refused(change):
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        OwnModel(**change)


def test_more_regions_than_clients_or_values_are_refused_before_any_data():
    with pytest.raises(ConfigurationError, match="n_regions=8"):
        Variant(n_regions=8).server(setting(n_clients=6))
    flag = Space({"flag": Categorical((False, True))})
    with pytest.raises(ConfigurationError, match="n_regions=4"):
        Variant(n_regions=4).server(setting(flag))


def test_default_bounds_are_the_papers_where_it_names_them():
    sample = Variant(share="sample", n_regions=2, n_features=50)
    assert sample.bound == pytest.approx(11.0)
    assert dataclasses.replace(sample, n_regions=4, n_features=100).bound == pytest.approx(22.0)
    assert Variant.paper().bound == 22.0


@pytest.mark.parametrize(
    "change", [{"median": 0.01}, {"low": 0.0}, {"high": 0.1}, {"spread": 0.0}, {"high": float("inf")}], ids=str
)
def test_impossible_priors_are_refused(change):
    with pytest.raises(ConfigurationError, match="prior"):
        Prior(**{"median": 0.4, "spread": 0.7, "low": 0.02, "high": 10.0} | change)


def test_own_models_are_read_from_a_configuration_file():
    table = {
        "kernel": "se",
        "draw": "exact",
        "refit_every": 0,
        "ard": False,
        "lengthscale": {"median": 0.03, "spread": 0.5, "low": 0.01, "high": 1.0},
        "noise_variance": 0.01,
    }
    algorithm = read_settings(Variant, {"own": table}, "algorithm")
    assert algorithm.own == OwnModel(
        kernel="se",
        draw="exact",
        refit_every=0,
        ard=False,
        lengthscale=Prior(median=0.03, spread=0.5, low=0.01, high=1.0),
        noise_variance=0.01,
    )
    with pytest.raises(ConfigurationError, match=r"own\.draw"):
        read_settings(Variant, {"own": table | {"draw": "some"}}, "algorithm")
