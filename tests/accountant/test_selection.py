"""Private selection: the distribution of the number of runs, its price, and the event that a ledger keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from accountant import numerical, renyi
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
    compose,
    from_dict,
    repeat,
    to_dict,
)
from accountant.ledger import Ledger
from accountant.ledger.policy import Budget, LedgerPolicy
from accountant.mechanisms.selection import TruncatedNegativeBinomial, second_orders

ADJACENCY = Adjacency.ADD_OR_REMOVE_ONE


def curve_of(event):
    return lambda at: renyi.curve(event, at, adjacency=ADJACENCY)


def test_price_of_the_geometric_distribution() -> None:
    """Theorem 2 at one Gaussian, by hand: eps(l) = l/(2 z^2), the second order optimised on a fine grid."""
    z, runs = 4.0, TruncatedNegativeBinomial(eta=1.0, gamma=0.1)
    at = second_orders()
    found = runs.curve(curve_of(Gaussian(noise_multiplier=z)), at)
    m = np.exp(np.linspace(math.log(1.01), math.log(2000), 20_000))
    extra = (2 * (1 - 1 / m) * m / (2 * z * z) + 2 * math.log(10) / m).min()
    by_hand = at / (2 * z * z) + extra + math.log(10) / (at - 1)
    np.testing.assert_allclose(found, by_hand, rtol=2e-3)
    assert (found >= by_hand - 1e-9).all()  # a coarser grid can only cost more


def test_pure_privacy_of_one_run_is_at_most_tripled() -> None:
    """Liu and Talwar 2019 / Corollary 3: an (e, 0)-DP run repeated geometrically costs 3 e at infinite orders."""
    epsilon, runs = 0.1, TruncatedNegativeBinomial(eta=1.0, gamma=0.01)
    found = runs.curve(lambda at: np.full_like(at, epsilon), np.array([1e5, 1e6, 1e9]))
    assert found[-1] <= 3 * epsilon + 2 * math.log(100) / 1024 * 1.01  # the largest second order is 1024


@pytest.mark.parametrize(("eta", "gamma"), [(-1, 0.5), (math.inf, 0.5), (math.nan, 0.5), (1, 0), (1, 1), (1, 1.5)])
def test_impossible_shapes_are_refused(eta, gamma) -> None:
    with pytest.raises(EventError, match=f"eta={eta} must be > -1 and gamma={gamma} lie in"):
        TruncatedNegativeBinomial(eta=eta, gamma=gamma)


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.3), (0.0, 0.05), (0.5, 0.2), (3.0, 0.4)])
def test_number_of_runs_is_scipys(eta, gamma) -> None:
    """Negative binomial given at least one success, or the logarithmic series: mean, and the quantile at 400 points."""
    runs = TruncatedNegativeBinomial(eta=eta, gamma=gamma)
    k = np.arange(1, 3000)
    weights = stats.logser.pmf(k, 1 - gamma) if eta == 0 else stats.nbinom.pmf(k, eta, gamma)
    chances = weights / weights.sum()
    assert runs.mean == pytest.approx((k * chances).sum(), rel=1e-9)
    at = (np.arange(400) + 0.5) / 400.5  # never on a step of the distribution
    assert [runs.quantile(u) for u in at] == list(k[np.searchsorted(chances.cumsum(), at)])
    assert runs.quantile(0.0) == 1
    assert runs.quantile(1.0 - 2.0**-53) >= runs.quantile(0.999)  # rounding ends the search, not a missing mass


def selection(z: float = 4.0, *, eta: float = 1.0, gamma: float = 0.1, steps: int = 40) -> BestOfRandomRuns:
    run = compose([(PoissonSampledGaussian(sample_rate=1 / 16, noise_multiplier=z), steps)])
    return BestOfRandomRuns(run=run, eta=eta, gamma=gamma)


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (0.0, 0.05), (0.5, 0.2)])
def test_another_program_prices_the_same_selection(eta, gamma) -> None:
    """dp-accounting's Rényi accountant, from the exported event; its grid of orders is coarser than ours."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    from accountant.dp_event import dp_event_expression, to_dp_event

    event = selection(eta=eta, gamma=gamma)
    theirs = RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    theirs.compose(to_dp_event(event, adjacency=ADJACENCY))
    ours = renyi.epsilon(event, 1e-5, adjacency=ADJACENCY)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)
    words = dp_event_expression(event, adjacency=ADJACENCY)
    names = {name: getattr(dp.dp_event, name) for name in dir(dp.dp_event) if name.endswith("DpEvent")}
    again = RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    again.compose(eval(words, names))  # noqa: S307 (our own words)
    assert again.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


def test_every_accountant_answers_with_the_renyi_bound() -> None:
    event = selection()
    found = numerical.epsilon_interval(event, 1e-5, adjacency=ADJACENCY)
    assert found.method == "renyi"
    table = numerical.epsilon_table(event, 1e-5, adjacency=ADJACENCY)
    assert table["tight"] == table["renyi"] <= table["moments"]
    twice = renyi.epsilon(repeat(event, 2), 1e-5, adjacency=ADJACENCY)
    assert table["renyi"] < twice < 2 * table["renyi"] * 1.2


def test_a_ledger_keeps_the_event_and_its_budget_holds(tmp_path) -> None:
    policy = LedgerPolicy(
        unit="record", adjacency=ADJACENCY, population="p", n_clients=100, budget=Budget(epsilon=3.0, delta=1e-5)
    )
    ledger = Ledger.create(tmp_path / "ledger.sqlite", policy)
    event = selection()
    ledger.charge("s/selection", event, run="s", noise_source="secure", plan_position=0)
    ledger.close()
    with Ledger.open(tmp_path / "ledger.sqlite") as back:
        assert back.entries()[0].event == event
        assert not back.check(repeat(selection(z=0.5), 1)).allowed
    assert from_dict(to_dict(event)) == event
    assert from_dict(to_dict(compose([event, event]))) == repeat(event, 2)


@pytest.mark.parametrize("run", [NonPrivate(), compose([]), selection(), "gaussian"])
def test_what_is_no_private_run_is_refused(run) -> None:
    with pytest.raises(EventError, match=r"private event other than a selection|unknown event"):
        BestOfRandomRuns(run=run, eta=1.0, gamma=0.1)
