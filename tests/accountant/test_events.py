"""Events: validation, merging, and a canonical form that survives storage."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, strategies as st
from scipy import stats

from accountant import Adjacency, compose, epsilon_table, gaussian_dp, moments, numerical, renyi, repeat
from accountant.dp_event import to_dp_event
from accountant.errors import AccountingError, BudgetExceeded, EventError, LedgerError
from accountant.events import Composed, NonPrivate, Unit, check_adjacency, from_dict, most_expensive, to_dict
from accountant.ledger import Budget, Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial, second_orders
from tests.accountant import builders
from tests.accountant.builders import EXAMPLES, best, charge, fixed, gaussian, laplace, lengths, poisson, policy
from tests.accountant.oracles import neighboring_relation

positive = st.floats(min_value=1e-50, max_value=1e50, exclude_min=True)
rates = st.floats(min_value=0, exclude_min=True, max_value=1)
counts = st.integers(1, 10**6)
basic = st.one_of(
    st.builds(gaussian, positive),
    st.builds(laplace, positive),
    st.builds(poisson, rates, positive),
    st.builds(builders.sampled_laplace, rates, positive),
    st.builds(builders.truncated, counts, rates, counts, positive),
    st.builds(lambda one, other, z: builders.allocated(max(one, other), min(one, other), z), counts, counts, positive),
    st.builds(lambda one, other, z: fixed(max(one, other), min(one, other), z), counts, counts, positive),
    st.builds(best, st.builds(gaussian, positive)),
    st.just(NonPrivate()),
)


@given(st.lists(st.tuples(basic, st.integers(1, 1000)), max_size=6))
def test_canonical_form_round_trips_exactly(items):
    event = compose(items)
    again = from_dict(json.loads(json.dumps(to_dict(event))))
    assert again == event
    assert to_dict(compose(reversed(items))) == to_dict(event)


def test_compose_merges_and_flattens():
    one, two = gaussian(1), gaussian(2.0)
    event = compose([one, (compose([two, one]), 3), gaussian(1.0)])
    assert dict(event.parts) == {one: 5, two: 3}
    assert repeat(one, 0) == Composed()
    assert repeat(Composed(parts=[(one, np.int8(100))]), 3) == repeat(one, 300)


G = gaussian(1)
BEST = {"type": "best-of-random-runs", "eta": 1.0, "gamma": 0.1}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Composed(parts=((G, 1), (G, 2))), "twice"),
        (lambda: Composed(parts=((Composed(), 1),)), "basic"),
        (lambda: Composed(parts=((G, 0),)), r"Composed\.count must be at least 1"),
        (lambda: compose([(G, 1.5)]), r"compose\.count must be an integer"),
        (lambda: compose(["gaussian"]), "str"),
        (lambda: from_dict({"type": "surprise"}), "surprise"),
        (lambda: from_dict({"type": "gaussian", "noise": 1.0}), "noise"),
        (lambda: from_dict({}), "unknown event type None"),
        (lambda: from_dict({"type": "composed"}), "list 'parts'"),
        (lambda: from_dict({"type": "composed", "parts": [], "more": 1}), "list 'parts'"),
        (lambda: from_dict({"type": "composed", "parts": 3}), "list 'parts'"),
        (lambda: from_dict(BEST | {"run": "gaussian"}), "of type str"),
        (lambda: from_dict(BEST | {"run": ["gaussian"]}), "of type list"),
        (lambda: from_dict(BEST), "cannot be made from the fields"),
        *((lambda r=run: best(r), "private event other than a selection|unknown event") for run in (
            NonPrivate(), Composed(), best(G), "gaussian"
        )),
        *((lambda e=event: most_expensive([e]), "share no unit") for event in (
            poisson(0.5, 1.0), gaussian(4.0, 2), compose([gaussian(4.0), gaussian(2.0)])
        )),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_and_named(act, words):
    with pytest.raises(EventError, match=words):
        act()


def test_a_selection_of_one_event_is_that_of_its_composition_and_refused_as_its_run_is():
    one = gaussian(4.0)
    assert best(one) == best(compose([one]))
    assert best(one).run == compose([one])
    assert best(compose([one, one])).run == repeat(one, 2)
    with pytest.raises(EventError, match="add-or-remove-one"):
        check_adjacency(best(fixed(5, 2, 1)), Adjacency.ADD_OR_REMOVE_ONE)
    check_adjacency(best(fixed(5, 2, 1)), Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("delta", [None, "1e-5", True, 0.0, 1.0, float("nan"), np.array([1e-5, 1e-6]), np.array(1e-5)])
def test_a_delta_that_is_no_probability_is_refused_with_the_remedy(delta) -> None:
    for price in (epsilon_table, renyi.epsilon, moments.epsilon, gaussian_dp.epsilon, numerical.epsilon):
        with pytest.raises(AccountingError, match=r"delta must lie in \(0, 1\).*usual is at most"):
            price(gaussian(2.0), delta, adjacency=Adjacency.ZERO_OUT)


@pytest.mark.parametrize("adjacency", ["nope", None, 3])
def test_an_unknown_adjacency_is_refused_with_those_that_are_known(adjacency) -> None:
    with pytest.raises(EventError, match="zero-out"):
        epsilon_table(gaussian(2.0), 1e-5, adjacency=adjacency)


TWO = {"sensitivities": (0.0, 1.0), "chances": (0.5, 0.5)}  # of as many as ``BEYOND`` has
EVERY = (EXAMPLES | {"mixture-of-gaussians": dataclasses.replace(lengths(1.0), **TWO)}).values()
NO_NUMBER = (math.nan, math.inf, -math.inf, True, "much", None, [1.0], 1j, -1.5)
BEYOND = {
    **dict.fromkeys(("noise_multiplier", "scale_multiplier"), (0.0, -1e-9, 1e-50, 1e-200, 2e50)),
    "sample_rate": (0.0, math.nextafter(1.0, 2.0)), "gamma": (0.0, 1.0), "eta": (-1.0,), "xi": (-1e-300,),
    "sample_size": (0, 41, 1.0), "participations": (0, 6, 1.0), "n_clients": (0, 40.0), "n_rounds": (0, 5.0),
    "batch_size": (0, 2.0), "sensitivities": ((), (1.0, 1.0), (-0.1, 1.0), (0.0,), (0.0, math.inf), ("a", 1.0)),
    "chances": ((0.5,), (0.5, 0.6), (0.0, 1.0), (-0.5, 1.5), (math.nan, 1.0), ()), "run": (),
}  # fmt: skip


@pytest.mark.parametrize("event", EVERY)
def test_numbers_are_floats_however_they_were_given(event):
    for name in {"noise_multiplier", "scale_multiplier", "rho"} & set(vars(event)):
        for value in (2, np.float32(2.0), np.int64(2)):
            made = dataclasses.replace(event, **{name: value})
            assert type(getattr(made, name)) is float
            assert to_dict(made) == to_dict(dataclasses.replace(event, **{name: 2.0}))


@pytest.mark.parametrize(
    ("event", "name", "value"),
    [
        (event, name, value)
        for event in EVERY
        for name in vars(event)
        for value in (*BEYOND.get(name, (0.0, -1e-9)), *(() if name in event.structured else NO_NUMBER))
    ],
)
def test_a_field_out_of_its_range_is_refused_by_name(event, name, value):
    with pytest.raises(EventError, match=rf"^{type(event).__name__}\.{name} must"):
        dataclasses.replace(event, **{name: value})


# ---- releases that share no unit: the dearest counts, in the arithmetic and in a ledger on disk

LOUD, QUIET = gaussian(4.0), gaussian(2.0)
of_rewards = partial(policy, unit=Unit.REWARD, adjacency=Adjacency.REPLACE_ONE, disjoint=True)


def test_the_least_noisy_release_is_the_price() -> None:
    assert most_expensive([LOUD, QUIET, LOUD]) == compose([QUIET])
    assert most_expensive([compose([LOUD]), QUIET]) == compose([QUIET])
    assert most_expensive([LOUD, NonPrivate(), QUIET]) == compose([NonPrivate()])
    assert most_expensive([]) == Composed()


def test_only_rewards_are_disjoint() -> None:
    for unit in (Unit.CLIENT, Unit.RECORD):
        with pytest.raises(LedgerError, match=f"one {unit.value}"):
            of_rewards(unit=unit)


def test_a_ledger_of_rewards_counts_its_dearest_charge(tmp_path) -> None:
    path = tmp_path / "ledger.sqlite"
    budget = Budget(epsilon=2.0, delta=1e-5)  # one release of multiplier 2 costs 1.99, two cost 3.0
    with Ledger.create(path, of_rewards(budget)) as ledger:
        for index in range(5):
            charge(ledger, f"a/{index}", QUIET)
        with pytest.raises(BudgetExceeded):
            charge(ledger, "a/dear", gaussian(1.9))
        with pytest.raises(EventError):
            charge(ledger, "a/x", poisson(0.5, 9.0))
    with Ledger.open(path) as again:
        assert again.policy == of_rewards(budget)
        assert again.event() == again.event("a") == compose([QUIET])
        assert len(again.entries()) == 5
        assert {entry.unit for entry in again.entries()} == {Unit.REWARD}
        assert again.verify().ok
    with Ledger.create(None, of_rewards(disjoint=False)) as summed:
        for index in range(2):
            charge(summed, f"a/{index}", QUIET)
        assert summed.event() == repeat(QUIET, 2)


# ---- private selection: the distribution of the number of runs, its price, and the event that a ledger keeps

ADJACENCY = Adjacency.ADD_OR_REMOVE_ONE


def test_price_of_the_geometric_distribution() -> None:
    """Theorem 2 at one Gaussian, by hand: eps(l) = l/(2 z^2), the second order optimised on a fine grid."""
    z, runs = 4.0, TruncatedNegativeBinomial(eta=1.0, gamma=0.1)
    at = second_orders()
    found = runs.curve(lambda at: renyi.curve(gaussian(z), at, adjacency=ADJACENCY), at)
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


@pytest.mark.parametrize(
    ("eta", "gamma", "mean"),
    [(0.51, 1 - 2**-53, 1), (-0.5, 1 - 2**-53, 1), (0, 1 - 2**-53, 1)]
    + [(eta, 0.01, 99 / math.log(100)) for eta in (1.3e-17, -1e-17, 5e-324)],
)
def test_number_of_runs_where_its_terms_nearly_cancel(eta, gamma, mean) -> None:
    runs = TruncatedNegativeBinomial(eta=eta, gamma=gamma)
    assert max(1, mean) <= runs.mean <= mean * (1 + 1e-14)
    assert runs.quantile(0.2) == 1
    assert runs.quantile(0.9) == TruncatedNegativeBinomial(eta=0, gamma=gamma).quantile(0.9)
    assert renyi.curve(best(poisson(1 / 16, 1000, 40), eta, gamma), [10], adjacency=ADJACENCY)[0] >= 0


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (0.0, 0.05), (0.5, 0.2)])
def test_another_program_prices_the_same_selection(eta, gamma) -> None:
    """dp-accounting's Rényi accountant, from the exported event; its grid of orders is coarser than ours."""
    event = best(poisson(1 / 16, 4.0, 40), eta, gamma)
    theirs = RdpAccountant(neighboring_relation=neighboring_relation(ADJACENCY))
    theirs.compose(to_dp_event(event, adjacency=ADJACENCY))
    ours = renyi.epsilon(event, 1e-5, adjacency=ADJACENCY)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)
