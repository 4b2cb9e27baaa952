"""Events as dp-accounting says them, and another library's price of an exported ledger.

Compared with dp-accounting's privacy-loss distribution only: its Rényi accountant (0.6.0) forgets the factor 2 of
replace-one and fixed-size sampling.
"""

import math
from types import SimpleNamespace

import dp_accounting as dp
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset

import accountant
import privbo.bridges.opacus
from accountant.dp_event import dp_event_expression, from_dp_event, to_dp_event
from accountant.errors import AccountingError, BudgetExceeded, EventError, LedgerError
from accountant.events import Adjacency, Composed, NonPrivate, Unit, compose
from accountant.ledger import Budget, Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from accountant.tight import numerical
from privbo.door.opacus import LedgerAccountant
from tests.accountant.builders import EXAMPLES, best, fixed, gaussian, laplace, lengths, poisson, policy

pytestmark = pytest.mark.filterwarnings(
    "ignore:Secure RNG turned off", "ignore:Full backward hook", "ignore:Optimal order", "ignore::FutureWarning"
)
ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
EVENTS = [
    Composed(),
    gaussian(2.5),
    compose([(poisson(0.1, 1.1), 40), gaussian(7.0)]),
    compose([(fixed(29, 10, 1.5), 3)]),
    compose([laplace(3.0), NonPrivate()]),
]
SELECTIONS = [
    best(poisson(0.1, 2.0, 3), *shape) for shape in [(1.0, 0.1), (0.0, 0.05), (2.5, 0.3), (-0.5, 0.01), (1.0, 0.9)]
]


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (event, adjacency)
        for event in [*EVENTS, *SELECTIONS, *EXAMPLES.values()]
        for adjacency in (ZERO, REPLACE)
        if adjacency not in getattr(event, "unsound", ()) and event is not EXAMPLES["random-allocation-gaussian"]
    ],
)
def test_the_expression_is_the_object_which_is_read_as_the_event(event, adjacency):
    names = {name: getattr(dp.dp_event, name) for name in dir(dp.dp_event) if name.endswith("DpEvent")}
    made = to_dp_event(event, adjacency=adjacency)
    assert eval(dp_event_expression(event, adjacency=adjacency), names) == made  # noqa: S307 (our own text)
    assert from_dp_event(made, adjacency=adjacency) == compose([event])


def test_each_event_is_said_in_their_convention():
    """Multipliers over one contribution's norm: twice ours under replace-one, and for fixed-size samples always."""

    def said(*parts):
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(part, count) for part, count in parts])

    assert to_dp_event(Composed(), adjacency=ZERO) == dp.NoOpDpEvent()
    assert to_dp_event(EVENTS[1], adjacency=ADD) == said((dp.GaussianDpEvent(2.5), 1))
    drawn = dp.SampledWithoutReplacementDpEvent(29, 10, dp.GaussianDpEvent(3.0))
    for adjacency, factor in ((ZERO, 1.0), (REPLACE, 2.0)):
        everyone, sampled = (dp.GaussianDpEvent(factor * z) for z in (7.0, 1.1))
        mixed = said((everyone, 1), (dp.PoissonSampledDpEvent(0.1, sampled), 40))
        noisy = said((dp.LaplaceDpEvent(factor * 3.0), 1), (dp.NonPrivateDpEvent(), 1))
        assert [to_dp_event(event, adjacency=adjacency) for event in EVENTS[2:5]] == [mixed, said((drawn, 3)), noisy]


@pytest.mark.parametrize(("eta", "mean"), [(1.0, 3.7), (0.0, 11.1), (-0.5, 1e4), (3.0, 1.001), (7.0, 1e9)])
def test_a_selection_is_read_at_its_mean_number_of_runs_and_never_at_fewer(eta, mean):
    ((found, _),) = from_dp_event(SELECTED(dp.GaussianDpEvent(9.0), mean, eta), adjacency=ZERO).parts
    runs = TruncatedNegativeBinomial(eta=found.eta, gamma=found.gamma)
    assert mean * (1 - 1e-15) <= runs.mean <= mean * (1 + 1e-9)
    assert (found.run, found.eta) == (gaussian(9.0, 1), eta)


G, TIMES, POISSON = dp.GaussianDpEvent, dp.SelfComposedDpEvent, dp.PoissonSampledDpEvent
DRAWN, SELECTED = dp.SampledWithoutReplacementDpEvent, dp.dp_event.RepeatAndSelectDpEvent
FOREIGN = {
    "nothing": (dp.NoOpDpEvent(), Composed()),
    "a composition of nothing": (dp.ComposedDpEvent([]), Composed()),
    "no times": (TIMES(G(1.0), 0), Composed()),
    "nothing, three times": (TIMES(dp.NoOpDpEvent(), 3), Composed()),
    "twice": (dp.ComposedDpEvent([G(1.0), TIMES(G(1.0), 1)]), gaussian(1.0, 2)),
    "one run, always": (SELECTED(G(2.0), 1.0, 1.0), gaussian(2.0)),
    "queries on one sample": (POISSON(0.1, dp.ComposedDpEvent([G(2.0), TIMES(G(2.0), 3)])), poisson(0.1, 1.0)),
    "queries on one sample of a size": (DRAWN(29, 10, TIMES(G(8.0), 4)), fixed(29, 10, 2.0)),
    "a sample of a sample": (POISSON(0.5, POISSON(0.25, G(3.0))), poisson(0.125, 3.0)),
    "a sample of everybody": (POISSON(1.0, dp.LaplaceDpEvent(3.0)), laplace(3.0)),
    "a sample of nobody": (POISSON(0.0, G(3.0)), Composed()),
    "a mixture": (dp.dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 2.0, 2.0], [0.9, 0.05, 0.05]), poisson(0.1, 1.5)),
    "a mixture of several": (
        dp.dp_event.MixtureOfGaussiansDpEvent(1.5, [1.0, 0.0, -2.0], [0.25, 0.5, 0.25]),
        lengths(1.5),
    ),
    "zero-concentrated": (dp.dp_event.ZCDpEvent(0.5, 0.1), accountant.ZeroConcentrated(rho=0.5, xi=0.1)),
    "trees": (TIMES(dp.dp_event.SingleEpochTreeAggregationDpEvent(6.0, [3, 8]), 2), gaussian(3.0, 2)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_others_write_is_read_as_what_it_means(name):
    theirs, ours = FOREIGN[name]
    assert from_dp_event(theirs, adjacency=ZERO) == compose([ours])


REFUSED = [
    dp.dp_event.RandomizedResponseDpEvent(0.5, 4),
    dp.dp_event.DiscreteLaplaceDpEvent(0.5, 1),
    dp.SampledWithReplacementDpEvent(10, 3, G(1.0)),
    dp.dp_event.UnsupportedDpEvent(),
    SELECTED(G(1.0), 3.0, math.inf),
    dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0], [1.0]),
    DRAWN(10, 3, dp.LaplaceDpEvent(1.0)),
]


@pytest.mark.parametrize("theirs", REFUSED, ids=lambda theirs: type(theirs).__name__)
def test_what_has_no_meaning_here_is_refused_by_its_name_with_the_reason(theirs):
    for nested in (theirs, TIMES(theirs, 3), dp.ComposedDpEvent([G(1.0), theirs])):
        words = rf"no sound accountant here for dp-accounting's {type(theirs).__name__}.*: \w"
        with pytest.raises(EventError, match=words):
            from_dp_event(nested, adjacency=ZERO)


@pytest.mark.parametrize(
    ("words", "act"),
    [
        ("add-or-remove-one", lambda: to_dp_event(fixed(29, 10, 1.5), adjacency=ADD)),
        ("add-or-remove-one", lambda: dp_event_expression(fixed(29, 10, 1.5), adjacency=ADD)),
        ("add-or-remove-one", lambda: from_dp_event(DRAWN(29, 10, G(3.0)), adjacency=ADD)),
        (f"no meaning under {REPLACE}", lambda: from_dp_event(FOREIGN["a mixture"][0], adjacency=REPLACE)),
        (f"no meaning under {ADD}", lambda: from_dp_event(FOREIGN["trees"][0], adjacency=ADD)),
        ("nothing is proven under", lambda: from_dp_event(FOREIGN["queries on one sample"][0], adjacency=REPLACE)),
        ("a private event other", lambda: from_dp_event(SELECTED(dp.NonPrivateDpEvent(), 3.0, 1.0), adjacency=ZERO)),
    ],
)
def test_what_means_something_under_other_adjacencies_only_is_refused(words, act):
    with pytest.raises(EventError, match=words):
        act()


def test_every_event_of_theirs_is_read_or_refused_on_purpose():
    known = {type(theirs).__name__ for theirs in REFUSED} | {
        "NoOpDpEvent", "NonPrivateDpEvent", "GaussianDpEvent", "LaplaceDpEvent", "SelfComposedDpEvent",
        "ComposedDpEvent", "PoissonSampledDpEvent", "TruncatedSubsampledGaussianDpEvent",
        "SingleEpochTreeAggregationDpEvent", "ZCDpEvent",
    }  # fmt: skip
    theirs = {name for name, kind in vars(dp.dp_event).items() if isinstance(kind, type) and name.endswith("DpEvent")}
    assert theirs - {"DpEvent"} == known


# ---- opacus training on our ledger: reserved first, counted down, impossible to run for free


def make_ledger(**changes):
    return Ledger.create(None, policy(**({"unit": Unit.RECORD, "adjacency": ADD} | changes)))


def reserve(ledger, *, steps=4, rate=0.25, z=1.0, **said):
    plain = {"release_id": "training", "run": "run", "unit": Unit.RECORD, "noise_source": "simulation"}
    terms = {"sample_rate": rate, "noise_multiplier": z, "steps": steps}
    return LedgerAccountant.reserve(ledger, **plain | terms | said)


def trained_by(engine, noise_multiplier, **said):
    """A tiny model, its optimizer and its data, made private by a privacy engine."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    model = torch.nn.Linear(3, 1)
    return engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        **said,
    )


def training(accountant):
    """A tiny model under a privacy engine that is hooked to ``accountant``."""
    engine = accountant.privacy_engine(secure_mode=False)
    return engine, *trained_by(engine, 1.0)


def run_steps(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def test_training_is_charged_before_and_counted():
    ledger = make_ledger()
    with reserve(ledger) as accountant:
        assert len(ledger.entries()) == 1
        engine, model, optimizer, loader = training(accountant)
        run_steps(model, optimizer, loader)
        assert len(accountant) == 4
        expected = poisson(0.25, 1.0, 4)
        assert engine.get_epsilon(1e-5) == numerical.epsilon(expected, 1e-5, adjacency=ADD)
        assert ledger.event() == expected
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(BudgetExceeded, match="beyond the 4 steps"):
            run_steps(model, optimizer, loader)
        # the refused step never reached the parameters
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_optimizer_without_the_hook_is_noticed_and_paid_for():
    """Planted fault: Opacus's optimizer built directly; its own accountants would say epsilon 0."""
    accountant = reserve(make_ledger())
    _, model, hooked, loader = training(accountant)
    bare = DPOptimizer(hooked.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    run_steps(model, bare, loader)
    assert accountant.get_epsilon(1e-5) > 1.0
    with pytest.raises(AccountingError, match="without this accountant's hook"):
        accountant.close()


def test_a_block_that_was_charged_trains_again_only_where_nothing_of_it_left():
    ledger = make_ledger()
    reserve(ledger)
    with pytest.raises(LedgerError, match=r"'training' was charged before, .* give this one an id of its own"):
        reserve(ledger)
    assert len(reserve(ledger, nothing_left=True)) == 0
    assert len(ledger.entries()) == 1


def test_units_never_mix_and_the_budget_is_checked_before_the_first_batch():
    ledger = make_ledger(budget=Budget(epsilon=1.0, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, steps=1000)
    assert ledger.entries() == []
    with pytest.raises(LedgerError, match="never add up"):
        reserve(make_ledger(unit=Unit.CLIENT))


def test_checkpoints_never_count_down():
    accountant = reserve(make_ledger())
    accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    state = accountant.state_dict()
    accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    accountant.load_state_dict(state)
    assert len(accountant) == 2
    resumed = reserve(make_ledger())
    resumed.load_state_dict(accountant.state_dict())
    assert len(resumed) == 2  # two of the four steps are left, not four
    with pytest.raises(AccountingError, match="no state"):
        accountant.load_state_dict({"mechanism": "rdp", "history": []})
    for change in ({"mechanism": "rdp"}, {"reserved": 5}):
        with pytest.raises(AccountingError, match="no state of a block of 4 reserved steps"):
            accountant.load_state_dict(state | change)
    given = {"kept": 1}
    assert accountant.state_dict(given) is given
    assert given == {"kept": 1, "mechanism": "ledger", "used": 2, "reserved": 4}


@pytest.mark.parametrize(("z", "rate"), [(1.5 * (1 - 1e-8), 0.25), (1.5, 0.25 * (1 + 1e-8)), (0.1, 0.01), (9.0, 1.0)])
def test_a_step_that_is_dearer_in_either_way_is_refused_and_not_counted(z, rate):
    accountant = reserve(make_ledger(), z=1.5)
    # Rounding of a batch size over a data size is no dearer step, and a cheaper one is none either.
    accountant.step(noise_multiplier=1.5 * (1 - 1e-10), sample_rate=0.25 * (1 + 1e-10))
    accountant.step(noise_multiplier=3.0, sample_rate=0.1)
    with pytest.raises(EventError, match=r"costs more than the reserved 1\.5 at 0\.25; reserve what"):
        accountant.step(noise_multiplier=z, sample_rate=rate)
    assert len(accountant) == 2


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_whole_block_is_priced_under_the_ledgers_adjacency(adjacency):
    ledger = make_ledger(adjacency=adjacency)
    accountant = reserve(ledger, z=2.0)
    expected = poisson(0.25, 1.0 if adjacency is REPLACE else 2.0, 4)
    assert accountant.event == ledger.event() == expected
    price = numerical.epsilon(expected, 1e-5, adjacency=adjacency)
    assert accountant.get_epsilon(1e-5, "alphas", poisson=True) == price
    (entry,) = ledger.entries()
    assert (entry.release_id, entry.run, entry.noise_source) == ("training", "run", "simulation")


def test_the_engine_is_hooked_to_the_block_and_draws_as_it_was_told(monkeypatch):
    accountant = reserve(make_ledger())
    engine = accountant.privacy_engine(secure_mode=False)
    assert engine.accountant is accountant
    assert engine.secure_mode is False
    trained_by(engine, 1.0, poisson_sampling=True)
    with pytest.raises(EventError, match=r"poisson_sampling=False must be True: .* charged as sampled; leave it out"):
        trained_by(engine, 1.0, poisson_sampling=False)
    with pytest.raises(EventError, match=r"secure_mode=True must be False: .* noise_source='simulation'; reserve what"):
        accountant.privacy_engine(secure_mode=True)
    monkeypatch.setattr("opacus.PrivacyEngine", SimpleNamespace)  # secure mode needs torchcsprng
    ledger = make_ledger()
    with pytest.raises(EventError, match="torchcsprng is not installed; install it, train with"):
        reserve(ledger, noise_source="secure")
    assert not ledger.entries()
    assert reserve(ledger, noise_source="secure", own_noise=True).reserved == 4
    monkeypatch.setattr("privbo.door.opacus.find_spec", lambda name: name)
    secure = reserve(make_ledger(), noise_source="secure")
    assert secure.privacy_engine(secure_mode=True) == SimpleNamespace(secure_mode=True, accountant=secure)
    with pytest.raises(EventError, match=r"secure_mode=False must be True: .* noise_source='secure'"):
        secure.privacy_engine(secure_mode=False)


def test_a_block_that_nobody_stepped_through_is_an_error_unless_there_is_one_already():
    with pytest.raises(AccountingError, match="4 steps are charged and none was counted"), reserve(make_ledger()):
        pass
    with pytest.raises(KeyError), reserve(make_ledger()):
        raise KeyError
    with reserve(make_ledger()) as accountant:
        accountant.step(noise_multiplier=1.0, sample_rate=0.25)


# ---- our accountant under its name in Opacus


def test_a_training_costs_what_its_steps_cost_and_the_state_survives():
    engine = PrivacyEngine(accountant="privbo")
    run_steps(*trained_by(engine, 2.0))
    steps = len(range(0, 64, 16))
    expected = accountant.epsilon(noise_multiplier=2.0, sample_rate=0.25, rounds=steps, delta=1e-5)
    assert engine.get_epsilon(1e-5) == expected
    again = privbo.bridges.opacus.PrivboAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    assert again.get_epsilon(1e-5) == expected
    assert accountant.tradeoff(again.event).epsilon(1e-5) == pytest.approx(expected, rel=2e-3)


def test_changed_noise_is_counted_apart_and_no_noise_costs_everything():
    spent = privbo.bridges.opacus.PrivboAccountant()
    for z in (2.0, 2.0, 3.0, 2.0):
        spent.step(noise_multiplier=z, sample_rate=0.1)
    assert spent.history == [(2.0, 0.1, 2), (3.0, 0.1, 1), (2.0, 0.1, 1)]
    assert sorted(count for _, count in spent.event.parts) == [1, 3]
    spent.step(noise_multiplier=0.0, sample_rate=0.1)
    assert spent.get_epsilon(1e-5) == float("inf")


def test_opacus_calibrates_with_it():
    goal = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
    z = get_noise_multiplier(**goal, accountant="privbo")
    exact = accountant.noise_multiplier(epsilon=2.0, delta=1e-5, sample_rate=0.01, rounds=1000)
    assert z == pytest.approx(exact, rel=0.01)
    assert z < get_noise_multiplier(**goal, accountant="rdp")
