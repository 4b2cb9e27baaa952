"""The far ends of the accountant: settings out of range, damaged files, answers that prove nothing."""

import dataclasses
import json
import math
import os
import sqlite3

import numpy as np
import pytest

import accountant
from accountant import calibrate, checks, gaussian_dp, moments, renyi
from accountant.errors import AccountingError, BudgetExceeded, CalibrationError, EventError, LedgerError
from accountant.events import (
    Adjacency,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    Unit,
    compose,
    from_dict,
    repeat,
)
from accountant.filters import ORDERS, fixed_order_filter
from accountant.ledger import Budget, Ledger, LedgerPolicy
from accountant.ledger.file import read_identity, set_durable
from accountant.ledger.store import Store, link_digest
from accountant.ledger.witness import Witness
from accountant.sensitivity import Sampler, client_epsilons, client_sensitivities, for_client
from accountant.tight import bounds, numerical, quadrature
from accountant.tight.pairs import pairs_of
from accountant.without_replacement import profile, renyi_bound_2019

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
SAMPLED = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)


def test_the_package_lists_its_names_and_no_others():
    assert dir(accountant) == sorted(accountant.__all__)
    assert accountant.tight.numerical is numerical
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        accountant.nothing  # noqa: B018 (the access is the test)


# --- bounds that prove nothing say so -------------------------------------------------------


def sums_of(event, delta=1e-5):
    pairs = numerical._directions(compose([event]), ZERO)[0]
    reach = numerical._reach(pairs, delta)
    moments = numerical._rough(pairs, reach)
    place = numerical._place(pairs, moments, *numerical._start(moments, delta), reach)
    return bounds.upper_sum(place), bounds.lower_sums(place)


def test_beyond_what_the_lattice_holds_the_upper_end_is_trivial_and_the_lower_end_nothing():
    upper, lower = sums_of(SAMPLED)
    assert bounds.upper_epsilon(upper, 1e-5) < 2
    assert bounds.upper_epsilon(dataclasses.replace(upper, infinite=1e-4), 1e-5) == math.inf
    assert bounds.upper_delta(upper, 1.0) < 1e-3
    assert bounds.upper_delta(upper, 1e6) == 1.0
    assert bounds.lower_delta(lower, 1e6) == 0.0
    assert 0.0 < bounds.lower_delta(lower, 0.1) <= bounds.upper_delta(upper, 0.1)


def test_a_delta_too_small_for_the_lattice_is_answered_by_renyi():
    found = numerical.epsilon_interval(SAMPLED, 1e-305, adjacency=ZERO)
    assert (found.method, found.lower) == ("renyi", 0.0)
    assert found.upper == renyi.epsilon(SAMPLED, 1e-305, adjacency=ZERO)
    assert numerical.quick_epsilon(SAMPLED, 1e-305, adjacency=ZERO) >= found.upper
    assert numerical.delta_interval(SAMPLED, 300.0, adjacency=ZERO).upper <= renyi.delta(SAMPLED, 300.0, adjacency=ZERO)


def test_quick_epsilon_of_what_costs_nothing_or_everything():
    assert numerical.quick_epsilon(Composed(), 1e-5, adjacency=ZERO) == 0.0
    assert numerical.quick_epsilon(NonPrivate(), 1e-5, adjacency=ZERO) == math.inf


def test_caches_can_be_forgotten_without_changing_an_answer():
    before = (numerical.epsilon(SAMPLED, 1e-5, adjacency=ZERO), renyi.epsilon(SAMPLED, 1e-5, adjacency=ZERO))
    numerical.clear_caches()
    renyi.clear_caches()
    caches = (numerical._pairs, quadrature._poisson_grid, quadrature._opposed_grid, quadrature._half_line)
    assert [cached.cache_info().currsize for cached in caches] == [0, 0, 0, 0]
    assert (numerical.epsilon(SAMPLED, 1e-5, adjacency=ZERO), renyi.epsilon(SAMPLED, 1e-5, adjacency=ZERO)) == before


def test_taking_everybody_is_the_plain_gaussian_whatever_the_sampler_is_called():
    everyone = (
        PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=2.0),
        FixedSizeSampledGaussian(n_clients=9, sample_size=9, noise_multiplier=2.0),
    )
    orders = np.array([1.5, 8.0])
    for event in everyone:
        assert len(pairs_of(event, ZERO)) == 1  # one symmetric pair; a sample has two
        np.testing.assert_allclose(quadrature.renyi_divergence(event, orders, ZERO), orders / 8.0)


def test_renyi_curves_of_the_non_private_and_of_strangers():
    assert np.all(np.isinf(quadrature.renyi_divergence(NonPrivate(), np.array([2.0, 3.0]), ZERO)))
    with pytest.raises(EventError, match="unknown event"):
        quadrature.renyi_divergence("noise", np.array([2.0]), ZERO)


def test_both_conversions_invert_themselves():
    orders, curve = np.array([4.0]), np.array([0.5])
    for conversion in ("improved", "moments"):
        epsilon = renyi.epsilon_at_orders(curve, orders, 1e-3, conversion=conversion)[0]
        log_delta = renyi.log_delta_at_orders(curve, orders, epsilon, conversion=conversion)[0]
        assert log_delta == pytest.approx(math.log(1e-3), rel=1e-12)


@pytest.mark.parametrize("module", [moments, renyi, gaussian_dp])
@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_delta_is_the_inverse_of_epsilon_and_both_know_nothing_and_everything(module, adjacency):
    event = repeat(Gaussian(noise_multiplier=4.0), 7)
    for wanted in (1e-3, 1e-8):
        epsilon = module.epsilon(event, wanted, adjacency=adjacency)
        assert 0.9 * wanted < module.delta(event, epsilon, adjacency=adjacency) <= wanted * (1 + 1e-6)
    assert module.epsilon(Composed(), 1e-5, adjacency=adjacency) == 0.0
    assert module.delta(Composed(), 1.0, adjacency=adjacency) == 0.0
    if module is not gaussian_dp:
        assert module.epsilon(NonPrivate(), 1e-5, adjacency=adjacency) == math.inf
        assert module.delta(NonPrivate(), 1.0, adjacency=adjacency) == 1.0
    tiny = Gaussian(noise_multiplier=1e4)
    assert module.epsilon(tiny, 0.5, adjacency=adjacency) < 0.05
    assert module.delta(tiny, 0.0, adjacency=adjacency) <= 1.0


@pytest.mark.parametrize("module", [moments, renyi, numerical])
def test_replacing_one_costs_more_than_zeroing_one_where_clients_are_sampled(module):
    """The same noise is half the multiplier under replace-one, whose sensitivity is twice as large."""
    sampled = repeat(SAMPLED, 10)
    halved = repeat(dataclasses.replace(SAMPLED, noise_multiplier=1.0), 10)
    one = module.epsilon(sampled, 1e-5, adjacency=ZERO)
    assert module.epsilon(sampled, 1e-5, adjacency=REPLACE) < one < module.epsilon(halved, 1e-5, adjacency=REPLACE)
    if module is moments:  # the sum of the paper's series and its integral agree, whichever adjacency asks
        assert one == pytest.approx(module.epsilon(sampled, 1e-5, adjacency=ADD), rel=1e-12)


@pytest.mark.parametrize("module", [moments, renyi, numerical])
def test_nothing_is_stated_of_an_event_that_means_nothing_under_the_adjacency(module):
    event = FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=3.0)
    with pytest.raises(EventError, match="no meaning under add-or-remove-one"):
        module.epsilon(event, 1e-5, adjacency=ADD)
    with pytest.raises(EventError, match="no meaning under add-or-remove-one"):
        module.delta(event, 1.0, adjacency=ADD)


def test_a_small_run_may_cost_less_than_one_under_every_accountant():
    event = Gaussian(noise_multiplier=50.0)
    for module in (moments, renyi, numerical, gaussian_dp):
        assert 0.0 < module.epsilon(event, 1e-5, adjacency=ZERO) < 0.5
        assert module.delta(event, 0.0, adjacency=ZERO) <= 1.0


def test_what_needs_no_accountant_is_answered_alike_for_all():
    fixed = FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=3.0)
    both = compose([SAMPLED, NonPrivate()])
    for event, epsilon, delta in ((Composed(), 0.0, 0.0), (NonPrivate(), math.inf, 1.0), (both, math.inf, 1.0)):
        assert checks.trivial_epsilon(event, 1e-5, ZERO) == epsilon
        assert checks.trivial_delta(event, 3.0, ZERO) == delta
    assert checks.trivial_epsilon(SAMPLED, 1e-5, ZERO) is None
    assert checks.trivial_delta(SAMPLED, 3.0, ZERO) is None
    for event in (NonPrivate(), SAMPLED):
        assert checks.trivial_delta(event, math.inf, ZERO) == 0.0  # nothing is above e^inf times anything
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(AccountingError, match=r"^delta must lie in \(0, 1\)"):
            checks.trivial_epsilon(SAMPLED, delta, ZERO)
    for epsilon in (-1e-9, math.nan):
        with pytest.raises(AccountingError, match=r"^epsilon must be at least 0"):
            checks.trivial_delta(SAMPLED, epsilon, ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        checks.trivial_epsilon(fixed, 1e-5, ADD)
    with pytest.raises(EventError, match="add-or-remove-one"):
        checks.trivial_delta(fixed, 1.0, ADD)


def test_the_central_limit_approximation_is_offered_for_gaussians_only():
    whole = PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=2.0)
    exact = gaussian_dp.epsilon(Gaussian(noise_multiplier=2.0), 1e-5, adjacency=ZERO)
    assert gaussian_dp.clt_epsilon(whole, 1e-5) == pytest.approx(exact, rel=1e-9)
    assert gaussian_dp.clt_epsilon(Composed(), 1e-5) == 0.0
    with pytest.raises(EventError, match="no central-limit"):
        gaussian_dp.clt_epsilon(Laplace(scale_multiplier=1.0), 1e-5)


def test_the_profile_below_one_is_the_reversed_one_and_the_old_bound_knows_integers_only():
    q, z = 0.25, 1.5
    assert profile(q, z, 0.5) == pytest.approx(0.5 + 0.5 * profile(q, z, 2.0))
    for wrong in ([2.5], [1.0], [3.0, 1.0]):
        with pytest.raises(AccountingError, match="integer orders"):
            renyi_bound_2019(q, z, wrong)


def test_a_filter_names_its_order():
    assert fixed_order_filter(epsilon=2.0, delta=1e-5, adjacency=ZERO).order in ORDERS


def test_a_composed_event_needs_its_parts_and_nothing_else():
    for data in ({"type": "composed"}, {"type": "composed", "parts": [], "more": 1}, {"type": "composed", "parts": 3}):
        with pytest.raises(EventError, match="list 'parts'"):
            from_dict(data)


# --- calibration ----------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [0.5, 1.01, 1.5])
def test_a_quick_search_that_was_misled_is_not_believed(monkeypatch, lie):
    honest = numerical.quick_epsilon
    monkeypatch.setattr(numerical, "quick_epsilon", lambda *a, **k: lie * honest(*a, **k))
    found = calibrate.noise_multiplier(
        lambda z: calibrate.poisson(0.25, z, 40), epsilon=4.0, delta=1e-5, adjacency=ZERO
    )
    assert 3.99 < numerical.epsilon(calibrate.poisson(0.25, found, 40), 1e-5, adjacency=ZERO) <= 4.0


def test_targets_out_of_reach():
    with pytest.raises(CalibrationError, match="no sample rate"):
        calibrate.sample_rate(0.01, rounds=10**6, epsilon=1e-9, delta=1e-12, adjacency=ZERO)
    with pytest.raises(CalibrationError, match="rounds stay within"):
        calibrate.rounds(2.0**23, sample_rate=1e-6, epsilon=1e6, delta=0.1, adjacency=ZERO)
    least = calibrate.noise_multiplier(lambda z: Gaussian(noise_multiplier=z), epsilon=1e5, delta=1e-5, adjacency=ZERO)
    assert least == pytest.approx(calibrate._LOW, rel=1e-12)


def test_the_root_is_an_end_where_the_curve_does_not_cross_and_never_on_the_dear_side():
    root = calibrate._decreasing_root
    assert root(lambda _: 0.5, 0.0, 1.0, 1.0) == 0.0
    assert root(lambda _: 2.0, 0.0, 1.0, 1.0) == 1.0
    steps = root(lambda x: 2.0 if x < 0.3 else 0.5, 0.0, 1.0, 1.0)
    assert 0.3 <= steps < 0.3001
    cliff = root(lambda x: 2.0 if x < 1.0 else 0.5, 0.0, 1.0, 1.0)
    assert cliff == 1.0


# --- one client's share ---------------------------------------------------------------------


def test_a_clients_share_scales_its_noise_under_every_sampler():
    fixed = FixedSizeSampledGaussian(n_clients=20, sample_size=5, noise_multiplier=1.5)
    assert for_client(fixed, 0.5) == compose([dataclasses.replace(fixed, noise_multiplier=3.0)])
    laplace = Laplace(scale_multiplier=1.0)
    assert for_client(laplace, 1.0) == compose([laplace])
    with pytest.raises(AccountingError, match="no per-client form"):
        for_client(laplace, 0.5)


def test_clients_epsilons_depend_on_shares_of_the_largest_not_on_units():
    event = Gaussian(noise_multiplier=2.0)
    moves = np.array([1.0, 0.5, 0.0])
    for unit in (1.0, 1e-3, 7.0):
        found = client_epsilons([(event, unit * moves), (event, unit * moves[::-1])], 1e-5, adjacency=ZERO)
        both = [compose([for_client(event, a), for_client(event, b)]) for a, b in zip(moves, moves[::-1], strict=True)]
        np.testing.assert_allclose(found, [numerical.epsilon(e, 1e-5, adjacency=ZERO) for e in both], rtol=1e-9)
    silent = client_epsilons([(event, np.zeros(3))], 1e-5, adjacency=ZERO)
    np.testing.assert_array_equal(silent, np.zeros(3))


def test_a_single_client_has_nobody_to_take_its_slot():
    found = client_sensitivities([0.5], 2.0, adjacency=ZERO, sampler=Sampler.FIXED_SIZE)
    np.testing.assert_array_equal(found, [1.0])
    with pytest.raises(AccountingError, match="unsound"):  # depends_on_n_clients unless said otherwise
        client_sensitivities([0.5], 2.0, adjacency=ADD, sampler=Sampler.POISSON)


# --- the ledger's file ----------------------------------------------------------------------


def policy(**changes):
    plain = {"unit": Unit.CLIENT, "adjacency": ZERO, "population": "p", "n_clients": 40}
    return LedgerPolicy(**(plain | changes))


@pytest.mark.parametrize(
    "change", [{"n_clients": 0}, {"n_clients": True}, {"n_clients": 1.5}, {"population": ""}, {"population": 3}]
)
def test_a_policy_out_of_range_is_refused(change):
    with pytest.raises(LedgerError, match=next(iter(change))):
        policy(**change)


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 0.0}, {"delta": 1.0}, {"rule": "hope"}]
)
def test_a_budget_out_of_range_is_refused(change):
    with pytest.raises(LedgerError, match=next(iter(change))):
        Budget(**({"epsilon": 1.0, "delta": 1e-5} | change))


def test_a_writer_that_fell_behind_still_charges_in_order_and_once(tmp_path, monkeypatch):
    from accountant.ledger import ledger as module

    monkeypatch.setattr(module, "_ATTEMPTS_OUTSIDE", 0)  # every race was lost
    path = tmp_path / "ledger"
    with Ledger.create(path, policy()) as one, Ledger.open(path) as other:
        first = one.charge("r/0", SAMPLED, run="r", noise_source="secure")
        again = other.charge("r/0", SAMPLED, run="r", noise_source="secure")
        second = other.charge("r/1", SAMPLED, run="r", noise_source="secure")
        assert (first.known, again.known, second.known) == (False, True, False)
        assert (again.head, second.sequence) == (first.head, 2)
        assert one.verify([(second.sequence, second.head)]).ok


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_charge_that_fails_half_way_is_rolled_back(tmp_path, monkeypatch, attempts):
    from accountant.ledger import ledger as module

    monkeypatch.setattr(module, "_ATTEMPTS_OUTSIDE", attempts)
    append = Store.append

    def broken(self, table, release_id, body):
        append(self, table, release_id, body)
        raise OSError("worn out")

    with Ledger.create(tmp_path / "ledger", policy()) as book:
        head = book.head
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", broken)
            with pytest.raises(LedgerError, match="nothing was released"):
                book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        assert (book.entries(), book.head) == ([], head)
        assert book.charge("r/0", SAMPLED, run="r", noise_source="secure").sequence == 1
        with monkeypatch.context() as patch:
            patch.setattr(Store, "append", broken)
            with pytest.raises(LedgerError, match="nothing was released"):
                book.store_release("r/0", b"noise")
        assert book.stored_release("r/0") is None
        assert book.verify().ok


def test_whatever_is_asked_of_a_ledger_counts_what_others_charged_meanwhile(tmp_path):
    path, budget = tmp_path / "ledger", Budget(epsilon=2.0, delta=1e-5, rule="gaussian")
    event = Gaussian(noise_multiplier=5.0)
    for ask in (
        lambda book: book.event() == compose([event]),
        lambda book: book.event("r") == compose([event]),
        lambda book: book.check(event).spent > 0.7,  # epsilon 0.79 at 1e-5
        lambda book: book.guarantees is False,
        lambda book: [entry.release_id for entry in book.entries()] == ["r/0"],
        lambda book: book.verify().n_entries == 1,
        lambda book: book.charge("r/0", event, run="r", noise_source="simulation").known,
    ):
        with Ledger.create(path, policy(budget=budget)) as one, Ledger.open(path) as other:
            assert one.guarantees
            other.charge("r/0", event, run="r", noise_source="simulation")
            assert ask(one)
        path.unlink()
        Witness.beside(path).path.unlink()


def test_nothing_in_memory_is_guaranteed():
    with Ledger.create(None, policy()) as book:
        book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        assert not book.guarantees


def test_inside_the_lock_the_same_rules_hold(tmp_path, monkeypatch):
    from accountant.ledger import ledger as module

    monkeypatch.setattr(module, "_ATTEMPTS_OUTSIDE", 0)
    event = Gaussian(noise_multiplier=5.0)  # epsilon 0.79 at 1e-5; two cost 1.16
    with Ledger.create(tmp_path / "ledger", policy(budget=Budget(epsilon=1.0, delta=1e-5))) as book:
        book.charge("r/0", event, run="r", noise_source="secure", plan_position=4)
        for release, source, run, error in (
            ("r/1", "secure", "r", BudgetExceeded),
            ("r/2", "simulation", "r", LedgerError),
            ("s/0", "secure", "s", LedgerError),
        ):
            with pytest.raises(error):
                book.charge(release, event, run=run, noise_source=source)
        assert [(e.run, e.plan_position) for e in book.entries()] == [("r", 4)]
        found = book.verify()
        assert (found.ok, found.head, found.n_entries) == (True, book.head, 1)


def test_a_price_that_another_charge_made_stale_is_not_used(tmp_path):
    event = Gaussian(noise_multiplier=5.0)
    path = tmp_path / "ledger"
    with (
        Ledger.create(path, policy(budget=Budget(epsilon=1.0, delta=1e-5))) as one,
        Ledger.open(path) as other,
    ):
        afford, waiting = one._require_affordable, [True]

        def overtaken(wanted):
            afford(wanted)
            if waiting and waiting.pop():
                other.charge("r/0", event, run="r", noise_source="secure")

        one._require_affordable = overtaken
        with pytest.raises(BudgetExceeded):
            one.charge("r/1", event, run="r", noise_source="secure")
        assert [e.release_id for e in one.entries()] == ["r/0"]


def test_seeded_noise_never_stands_beside_real_noise_nor_hides_behind_a_plain_sum(tmp_path):
    with Ledger.create(tmp_path / "ledger", policy()) as book:
        receipt = book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        assert receipt.release_id == "r/0"
        assert book.charge("r/0", SAMPLED, run="r", noise_source="secure").release_id == "r/0"
        with pytest.raises(LedgerError, match="secure"):
            book.charge("r/1", SAMPLED, run="r", noise_source="simulation")
        book.charge("r/1", NonPrivate(), run="r", noise_source="none")
        with pytest.raises(LedgerError, match="simulation"):
            book.charge("r/2", SAMPLED, run="r", noise_source="simulation")
        assert [e.release_id for e in book.entries()] == ["r/0", "r/1"]
    with Ledger.create(tmp_path / "other", policy()) as book:
        assert book.check(SAMPLED).head == book.head
        with pytest.raises(LedgerError, match="run"):
            book.charge("r/0", SAMPLED, run="", noise_source="secure")


def forge(path, body):
    """A charge with a correct digest that the program did not write."""
    connection = sqlite3.connect(path, isolation_level=None)
    previous = read_identity(connection, path).genesis("charges")
    digest = link_digest(previous, 1, "r/0", body)
    connection.execute("INSERT INTO charges VALUES (1, 'r/0', ?, ?, ?)", (body, previous, digest))
    connection.close()


def entry(**changes):
    from accountant.events import to_dict

    plain = {
        "release_id": "r/0", "run": "r", "event": to_dict(SAMPLED), "unit": "client", "adjacency": "zero-out",
        "population": "p", "n_clients": 40, "noise_source": "secure", "plan_position": 0, "time": "2026-01-01T00:00:00",
    }  # fmt: skip
    return json.dumps(plain | changes).encode()


@pytest.mark.parametrize("body", [b"not json", b"[]", b"{}", entry(event={"type": "noise"}), entry(unit="planet")])
def test_a_charge_that_cannot_be_read_is_a_problem_not_a_free_release(tmp_path, body):
    path = tmp_path / "ledger"
    with Ledger.create(path, policy()) as book:
        forge(path, body)
        assert not book.verify().ok
        with pytest.raises(LedgerError, match="cannot be read"):
            book.entries()
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(path)


def test_a_ledger_that_holds_more_than_its_budget_is_a_problem(tmp_path):
    from accountant.events import to_dict

    path = tmp_path / "ledger"
    Ledger.create(path, policy(budget=Budget(epsilon=1.0, delta=1e-5))).close()
    forge(path, entry(sampler="everyone", event=to_dict(Gaussian(noise_multiplier=0.5))))
    with Ledger.open(path) as book:
        found = book.verify()
        assert not found.ok
        exact = gaussian_dp.epsilon_from_mu(2.0, 1e-5)
        assert found.problem.startswith(f"what was charged comes to epsilon {exact:.6g}")
        with pytest.raises(BudgetExceeded):
            book.charge("r/1", Gaussian(noise_multiplier=1e6), run="r", noise_source="secure")


def test_a_last_charge_that_was_written_anew_is_noticed_by_whoever_saw_it(tmp_path):
    path = tmp_path / "ledger"
    with Ledger.create(path, policy()) as book:
        book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM charges")
        connection.close()
        forge(path, entry(sampler="poisson", time="2020-01-01T00:00:00"))
        with pytest.raises(LedgerError, match="charge 1 was seen and is gone"):
            book.entries()
        with pytest.raises(LedgerError, match="charge 1 was seen and is gone"):
            book.charge("r/1", SAMPLED, run="r", noise_source="secure")


@pytest.mark.parametrize(
    ("spent", "projected", "allowed"),
    [
        (0.0, 1.0, True), (0.5, 0.4, True), (1.0, 1.0, True), (0.5, 1.1, False), (1.1, 0.9, False),
        (-0.1, 0.5, False), (0.5, -0.1, False), (math.nan, 0.5, False), (0.5, math.nan, False),
    ],
)  # fmt: skip
def test_both_what_was_spent_and_what_would_be_lie_within_the_budget(spent, projected, allowed):
    with Ledger.create(None, policy(budget=Budget(epsilon=1.0, delta=1e-5))) as book:
        book._price = lambda event: projected if event.parts else spent
        found = book.check(SAMPLED)
        assert found.allowed is allowed
        assert (found.reason is None) == allowed
        if not allowed:
            with pytest.raises(BudgetExceeded):
                book.charge("r/0", SAMPLED, run="r", noise_source="secure")
            assert book.entries() == []


@pytest.mark.parametrize(
    "sources", [("secure", "exact", "none", "secure"), ("none", "simulation", "none", "simulation")], ids=str
)
def test_kinds_of_noise_that_say_the_same_of_a_guarantee_share_a_ledger_and_plain_sums_share_any(sources):
    with Ledger.create(None, policy()) as book:
        for index, source in enumerate(sources):
            book.charge(f"r/{index}", SAMPLED, run="r", noise_source=source)
        assert [e.noise_source for e in book.entries()] == list(sources)
        for index, source in enumerate(sources):
            other = next(s for s in ("secure", "exact", "simulation", "none") if s != source)
            with pytest.raises(LedgerError, match="was charged as"):
                book.charge(f"r/{index}", SAMPLED, run="r", noise_source=other)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE identity SET policy = '[]'", "policy cannot be read"),
        ("PRAGMA user_version = 99", "schema version 99"),
    ],
)
def test_a_ledger_whose_head_was_changed_is_refused(tmp_path, damage, words):
    path = tmp_path / "ledger"
    Ledger.create(path, policy()).close()
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(LedgerError, match=words):
        Ledger.open(path)


def test_storage_that_is_not_durable_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="journal_mode=memory"):
        set_durable(sqlite3.connect(":memory:", isolation_level=None), tmp_path)


def test_a_file_that_became_another_ledger_is_noticed_before_it_is_charged(tmp_path):
    path = tmp_path / "ledger"
    with Ledger.create(path, policy()) as book:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE identity SET ledger_id = 'another'")
        connection.close()
        with pytest.raises(LedgerError, match="another ledger"):
            book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        assert "identity" in (book.verify().problem or "")


def test_a_witness_that_was_written_in_part_stops_the_release(tmp_path, monkeypatch):
    witness = Witness.beside(tmp_path / "ledger")
    witness.create()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:3]))
    with pytest.raises(OSError, match="full"):
        witness.append("charges", 1, "0" * 64)


def test_a_forked_process_cannot_use_a_ledger_in_memory(monkeypatch):
    book = Ledger.create(None, policy())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="forked"):
        book.entries()


def test_a_forked_process_gets_a_connection_of_its_own(tmp_path, monkeypatch):
    with Ledger.create(tmp_path / "ledger", policy()) as book:
        mine = book._store.connection
        here = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: here + 1)
        theirs = book._store.connection
        assert theirs is not mine
        book.charge("r/0", SAMPLED, run="r", noise_source="secure")
        monkeypatch.setattr(os, "getpid", lambda: here)
    assert mine is not None
