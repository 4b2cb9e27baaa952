"""Attacks on whole runs: 20,000 runs in each of two worlds, 99 % confidence at delta .01; false alarms 1e-6 elsewhere.

At mu = 1 a threshold chosen beforehand reaches .87 of the accountant's epsilon in expectation, and at least .8 with
probability .99; seeds are fixed, so the outcome is. The errors at the middle threshold bound mu within 8 %, which is
what catches noise that is 10 % too small (mu 1.11) and a release that was drawn twice (mu 1.15 of three releases).

**Driven**: ``privbo.runs.opening.open_run`` (manifest, reservation, ledger, door, server) and
``privbo.runs.loop.play`` (ask, open, collect, close, tell, record) with the shipped in-process transport: all that
``pb.run`` does for a simulation in memory, but for planning, which is the same for every run and done once. Noise is
seeded, each run with a seed of its own. The algorithm is ``Zoom`` of the how-to: clients' vectors are scores of
candidates that earlier releases chose, so the other clients react to what was released.

**Worlds**: the canary scores 1 everywhere, so that its vector has the largest allowed norm in every round; or its
vector is zero (zero-out adjacency). The attacker knows the other clients' data and all public numbers.

**Distinguisher**: Neyman and Pearson's: the log likelihood ratio of all releases, which for Gaussian noise is the sum
of their projections on the canary's vector, each less what the other clients contributed; under Poisson sampling the
log of its mixture over the canary's coin.

**Bounds** (Clopper and Pearson 1934; pooled counts of both tails are sums of independent trials of two kinds, whose
tails are no wider than a binomial's, Hoeffding 1956):

- ``epsilon_lower``: from one threshold, chosen beforehand from public numbers, without any assumption on the mechanism.
  (epsilon, delta)-privacy gives P(S) <= e^epsilon Q(S) + delta and Q(S') <= e^epsilon P(S') + delta; the mean of both
  is bounded by pooled counts.
- ``mu_lower``: from the errors at the middle threshold. A run whose releases are mu-GDP together has
  fpr + fnr >= 2 Phi(-mu / 2), so a smaller sum contradicts mu.
- ``curve``: lower bounds on delta at many epsilons, all at once.
"""

import dataclasses
import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import privbo as pb
from accountant import numerical
from experiments.examples.zoom import Zoom
from privbo.audits import empirical
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.protocol.messages import FloatArray, IntArray, Request
from privbo.runs.in_process import in_process
from privbo.runs.loop import play
from privbo.runs.opening import open_run, plan_run
from privbo.runs.spec import Spec
from privbo.testing import bumps
from tests.builders import mechanism_for, problem
from tests.statistical.faults import FAULTS, FIXED_SIZE, SOUND, Fault

N_CLIENTS, CANARY, CANDIDATES = 3, 0, 2
DELTA, CONFIDENCE = 0.01, 0.99


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run that is attacked.

    Attributes:
        rounds: T, number of releases.
        noise_multiplier: z of each.
        sample_rate: q.
        others: Whether the other clients' vectors are not zero; only where everybody takes part, because the
            attacker does not know who was sampled.
    """

    rounds: int
    noise_multiplier: float
    sample_rate: float = 1.0
    others: bool = True

    @property
    def mu(self) -> float:
        """Distance of the two worlds, exact at rate 1."""
        return self.sample_rate * math.sqrt(self.rounds) / self.noise_multiplier

    def spec(self, *, canary: bool) -> Spec:
        def score(clients: IntArray, units: FloatArray) -> FloatArray:
            others = np.clip(bumps(clients, units), 0.0, 1.0) if self.others else 0.5
            return np.where(clients == CANARY, 1.0 if canary else 0.5, others)

        attacked = problem(N_CLIENTS, space={"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}, batch_objective=score)
        sampled = {"noise_multiplier": self.noise_multiplier, "sample_rate": self.sample_rate}
        privacy = pb.Privacy(noise="simulation", delta=DELTA, **sampled)
        algorithm = Zoom(n_candidates=CANDIDATES)
        return Spec(name="attacked", problem=attacked, algorithm=algorithm, privacy=privacy, rounds=self.rounds)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Outcome of an attack.

    Attributes:
        epsilon_lower: Lower confidence bound on epsilon at ``DELTA``, free of assumptions.
        epsilon_claimed: The accountant's.
        mu_lower: Lower confidence bound (false alarms 1e-6) on mu.
        mu_claimed: Of the plan, at rate 1.
        curve: Where the measured curve comes closest to the accountant's (false alarms 1e-6).
    """

    epsilon_lower: float
    epsilon_claimed: float
    mu_lower: float
    mu_claimed: float
    curve: empirical.Point


def play_once(spec: Spec, seed: int):
    """One run in memory with the noise of a seed."""
    opened = open_run(dataclasses.replace(spec, seed=seed), plan_run(spec), None)
    transport = in_process(opened.setup, None, spec.problem.evaluator(), None)
    record = dataclasses.replace(play(opened, transport), _clients=transport.history())
    transport.end()
    return record


def log_ratio(record, first: int = 0) -> float:
    """Log likelihood ratio of what a run released from a round on: canary present against absent."""
    spec, history = record.spec, record.clients
    rate = spec.privacy.sample_rate
    canary = np.full(CANDIDATES, 0.5) / N_CLIENTS / rate
    others = np.delete(history.values - 0.5, CANARY, axis=0).sum(axis=0) / N_CLIENTS / rate
    total = 0.0
    for release in (one for one in record.releases if one.round >= first):
        shift = canary / release.noise_stddev
        seen = (release.values[0] - others[history.rounds == release.round]) / release.noise_stddev
        told = float(seen @ shift - shift @ shift / 2)
        total += told if rate == 1 else math.log1p(rate * math.expm1(told))
    return total


def once(spec: Spec, runs: int, first: int) -> FloatArray:
    """Log ratios of so many runs."""
    return np.array([log_ratio(play_once(spec, first + index)) for index in range(runs)])


def attack(setting: Setting, runs: int, *, ratios=once, first: int = 0) -> Found:
    """Play ``runs`` runs in each of the two worlds and tell them apart.

    Args:
        setting: What is attacked.
        runs: Runs in each world.
        ratios: Log ratios of runs of a spec from a first seed on.
        first: The first seed.
    """
    worlds = ((True, first), (False, first + runs))
    present, absent = (ratios(setting.spec(canary=canary), runs, start) for canary, start in worlds)
    mu, event = setting.mu, plan_run(setting.spec(canary=True)).event
    # In units in which a run at rate 1 is N(mu, 1) against N(0, 1).
    plus, minus = present / mu + mu / 2, absent / mu + mu / 2
    measured = empirical.measured_curve(plus, minus, 1e-6 / empirical.N_BOUNDS)
    return Found(
        epsilon_lower=_epsilon_lower(plus, minus, mu),
        epsilon_claimed=numerical.epsilon(event, DELTA, adjacency=pb.Privacy(epsilon=1.0).adjacency),
        mu_lower=_mu_lower(plus, minus, mu),
        mu_claimed=mu,
        curve=empirical.closest_point(measured[None], _accounted(event)),
    )


def _accounted(event) -> FloatArray:
    adjacency = pb.Privacy(epsilon=1.0).adjacency
    return np.array([numerical.delta(event, epsilon, adjacency=adjacency) for epsilon in empirical.EPSILONS])


def _bound(seen: float, unseen: float, trials: int) -> float:
    level = (1.0 - CONFIDENCE) / 2
    low = float(empirical.lower_confidence(np.array(seen), trials, level))
    high = float(empirical.upper_confidence(np.array(unseen), trials, level))
    return math.log((low - DELTA) / high) if low - DELTA > high else 0.0


def _epsilon_lower(plus: FloatArray, minus: FloatArray, mu: float) -> float:
    trials = 2 * len(plus)
    # The threshold that does best in expectation, from public numbers alone.
    tried = np.linspace(0.0, mu + 4.0, 200)
    threshold = max(tried, key=lambda t: _bound(trials * ndtr(mu - t), trials * ndtr(-t), trials))
    seen = np.sum(plus > threshold) + np.sum(minus < mu - threshold)
    unseen = np.sum(minus > threshold) + np.sum(plus < mu - threshold)
    return _bound(float(seen), float(unseen), trials)


def _mu_lower(plus: FloatArray, minus: FloatArray, mu: float) -> float:
    errors = float(np.sum(plus <= mu / 2) + np.sum(minus > mu / 2))
    return max(0.0, -2.0 * float(ndtri(empirical.upper_confidence(np.array(errors), 2 * len(plus), 1e-6))))


RUNS, FEW = 20_000, 200
THREE, TEN = (Setting(rounds=rounds, noise_multiplier=math.sqrt(rounds)) for rounds in (3, 10))
SAMPLED = Setting(rounds=5, noise_multiplier=1.0, sample_rate=0.4, others=False)


def kept(found: Found) -> bool:
    """Whether nothing that was seen contradicts the claim."""
    return found.epsilon_lower <= found.epsilon_claimed and found.curve.passed


def test_a_few_whole_runs_stay_under_the_curve_and_show_their_canary() -> None:
    found = attack(THREE, FEW)
    assert kept(found)
    assert 0.2 < found.mu_lower <= found.mu_claimed


GRID_SCALE = PrivateSum.grid_scale


@pytest.mark.parametrize(("factor", "runs"), [(0.5, FEW), pytest.param(0.9, RUNS, marks=pytest.mark.slow)])
def test_noise_that_is_a_tenth_too_small_is_caught(factor: float, runs: int) -> None:
    """Half of it in a few whole runs, a tenth less in many."""
    with mock.patch.object(PrivateSum, "grid_scale", lambda self: factor * GRID_SCALE(self)):
        found = attack(THREE, runs)
    assert found.mu_lower > found.mu_claimed


@pytest.mark.slow
@pytest.mark.parametrize("setting", [THREE, TEN], ids=["three rounds", "ten rounds"])
def test_an_attack_on_whole_runs_reaches_four_fifths_of_the_curve_and_never_passes_it(setting: Setting) -> None:
    found = attack(setting, RUNS)
    print(found)
    assert kept(found)
    assert 0.8 * found.epsilon_claimed <= found.epsilon_lower
    assert 0.9 * found.mu_claimed <= found.mu_lower <= found.mu_claimed


@pytest.mark.slow
def test_an_attack_on_runs_with_secret_samples_stays_under_the_curve() -> None:
    found = attack(SAMPLED, RUNS)
    print(found)
    assert kept(found)
    assert found.epsilon_lower > 0.4 * found.epsilon_claimed


def last_round_twice(spec: Spec, runs: int, first: int) -> FloatArray:
    """Log ratios where the ledger went back before the last round, which was drawn again with other noise."""
    again = []
    for index in range(runs):
        told, untold = play_once(spec, first + index), play_once(spec, first + index + 10**6)
        again.append(log_ratio(told) + log_ratio(untold, first=spec.rounds - 1))
    return np.array(again)


@pytest.mark.slow
def test_a_release_that_was_drawn_twice_is_caught() -> None:
    found = attack(THREE, RUNS // 2, ratios=last_round_twice)
    print(found)
    assert found.mu_lower > found.mu_claimed


# ---- curve audit: 1e5 releases per side and world, alpha = 1e-6 per audit, planted faults each in their world

AUDIT = {"trials": 100_000, "alpha": 1e-6}
WEIGHTS = np.array([[0.9, 0.9, 0.9, 0.9], [0.4, 0.4, 0.4, 0.4]])
WORLDS = ["others zero", "others opposing", "alone"]
# The world in which each fault must show; a twentieth less noise shows in none, and in a replay.
WORLD_OF = {name: "others zero" for name in FAULTS if name != "std x 0.95"}
WORLD_OF |= dict.fromkeys(FIXED_SIZE, "others opposing") | {"noiseless empty sample": "alone"}


def build(sampling: str = "poisson", fault: Fault = SOUND, **settings):
    fixed = {"noise_multiplier": 1.0, "sample_rate": 0.5, "sampling": sampling} | settings

    def mechanism(weights):
        # A single client can only be sampled whole under fixed-size sampling.
        changed = {"sample_rate": 1.0} if sampling == "fixed-size" and weights.shape[1] == 1 else {}
        return fault.plant(mechanism_for(Request(dim=1, clipping_norm=2.0, weights=weights), **fixed | changed))

    return mechanism


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_the_shipped_mechanism_passes(sampling: str, world: str) -> None:
    found = empirical.audit_curve(build(sampling), WEIGHTS, noise=SecureNoise(), world=world, **AUDIT)
    assert found.passed, found


@pytest.mark.parametrize("name", WORLD_OF)
def test_each_fault_fails_in_its_world(name: str) -> None:
    fault, attacked = FAULTS[name], {"noise": SimulatedNoise(1), "world": WORLD_OF[name]} | AUDIT
    # A realised count shows in samples well below the expected size, so there are more clients and less noise.
    by_count = name.startswith("division")
    weights, multiplier = (WEIGHTS[:, [0] * 6], 0.7) if by_count else (WEIGHTS, 1.0)
    mechanism = build("fixed-size" if name in FIXED_SIZE else "poisson", fault, noise_multiplier=multiplier)
    found = empirical.audit_curve(mechanism, weights, release=fault.releases, **attacked)
    assert not found.passed, found
    assert found.delta_lower > found.delta_claimed


def test_the_gaussian_audit_is_tight_at_rate_one() -> None:
    request = Request(dim=1, clipping_norm=2.0, weights=WEIGHTS)
    # The bound's standard deviation is 0.4 % and 0.7 % of epsilon below a mean 0.6 % and 1.1 % under it, so
    # each floor is an event of probability below 1e-6 (5 sigma).
    for multiplier, floor in ((0.5, 0.97), (1.0, 0.95)):
        mechanism = mechanism_for(request, noise_multiplier=multiplier)
        settings = {"noise": SecureNoise(), "delta": 1e-5, "trials": AUDIT["trials"]}
        low, accounted = empirical.epsilon_lower_bound(mechanism, WEIGHTS, **settings)
        # 95 % bound: a bound above the truth is an event of probability 0.05, 3 % above it one below 1e-6.
        assert floor * accounted <= low <= 1.03 * accounted
