"""Replay: 320 adversarial cases through the shipped door, no false alarm, every planted fault found.

Nothing here is random in its verdict: a finding is a contradiction, so the false-alarm rate is zero.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from accountant.events import Adjacency
from privbo.audits import empirical
from privbo.door.mechanism import PrivateSum, UnitMove
from privbo.door.noise import SimulatedNoise
from privbo.protocol.messages import Request, Setting
from tests.builders import mechanism_for
from tests.conformance.cases import CASES, N_CLIENTS, ROUNDS, problem
from tests.door.replayed_runs import adversarial_rows, replay, through_the_door
from tests.statistical.faults import FAULTS, FIXED_SIZE, SOUND, SOUND_ARITHMETIC, Fault

N_CASES = 320


@dataclass(frozen=True)
class Adversary:
    """One mechanism, its request, the client under attack and everybody's vectors."""

    settings: dict
    request: Request
    client: int
    rows: np.ndarray
    seed: int

    def findings(self, fault: Fault = SOUND) -> tuple[str, ...]:
        def planted(wanted: Request) -> PrivateSum:
            return fault.plant(mechanism_for(wanted, **self.settings))

        attacked = {"client": self.client, "seed": self.seed}
        return replay(planted, self.request, self.rows, **attacked, play=fault.play).findings


def weights(rng: np.random.Generator, n_blocks: int, n_clients: int) -> np.ndarray:
    uniform = np.full((n_blocks, n_clients), 1 / n_clients)
    random = rng.random((n_blocks, n_clients))
    concentrated = np.full((n_blocks, n_clients), 1e-3)
    concentrated[np.arange(n_clients) % n_blocks, np.arange(n_clients)] = 1.0
    scaled = random * 10.0 ** rng.integers(-30, 30)
    return [uniform, random, concentrated, scaled][rng.integers(4)]


def case(seed: int, **fixed) -> Adversary:
    rng = np.random.default_rng([seed, 20240607])
    n_blocks, n_clients = int(rng.integers(1, 5)), int(rng.integers(2, 9))
    n_blocks = fixed.pop("n_blocks", n_blocks)
    settings = {
        "noise_multiplier": float(10 ** rng.uniform(-2, 2)),
        "sample_rate": float(rng.choice([0.25, 0.5, 0.8, 1.0])),
        "sampling": str(rng.choice(["poisson", "fixed-size"])),
        "adjacency": rng.choice([Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE]),
        "calibration": str(rng.choice(["tight", "paper"])),
    } | fixed
    if settings["sampling"] == "fixed-size":
        settings["sample_rate"] = max(settings["sample_rate"], 1 / n_clients)
    request = Request(
        dim=int(rng.integers(1, 7)),
        clipping_norm=float(10 ** rng.uniform(-6, 6)),
        weights=weights(rng, n_blocks, n_clients),
    )
    # The attacked client is the one that the weights favour most, or anyone.
    favoured = int(np.argmax(np.linalg.norm(request.weights, axis=0)))
    client = favoured if rng.random() < 0.7 else int(rng.integers(n_clients))
    return Adversary(settings, request, client, adversarial_rows(request, client, rng=rng), seed)


@pytest.mark.parametrize("block", range(4))
def test_no_false_alarm_in_adversarial_cases(block: int) -> None:
    for seed in range(block * N_CASES // 4, (block + 1) * N_CASES // 4):
        assert case(seed).findings() == (), seed


def reward_case(seed: int, **fixed) -> Adversary:
    """One reward is the unit: everybody takes part, rewards are replaced; every other vector fits its bound."""
    rng = np.random.default_rng([seed, 20240608])
    fixed |= {"sample_rate": 1.0, "sampling": "poisson", "calibration": "tight", "adjacency": Adjacency.REPLACE_ONE}
    found = case(seed, **fixed)
    bound = found.request.clipping_norm / np.sqrt(found.request.n_blocks)
    if seed % 2:
        row = rng.normal(size=found.request.dim)
        found.rows[found.client] = 0.5 * bound * row / np.linalg.norm(row)
    unit_bound = bound * float(10 ** rng.uniform(-4, -0.5 if seed % 2 else 1.0))
    return dataclasses.replace(found, request=dataclasses.replace(found.request, unit="reward", unit_bound=unit_bound))


def test_no_false_alarm_where_one_reward_is_the_unit() -> None:
    for seed in range(80):
        assert reward_case(seed).findings() == (), seed


def _moved(after_clipping) -> Fault:
    """A reward moves a clipped vector as far as that says of its move, bound and noise multiplier."""
    kind = type("Moved", (UnitMove,), {"after_clipping": after_clipping})
    return Fault(plant=lambda sound: dataclasses.replace(sound, move=kind(**vars(sound.move))))


REWARD_FAULTS = {
    "std x 0.95": FAULTS["std x 0.95"],
    "noise for half a reward": _moved(lambda move, bound, noise: 0.5 * UnitMove.after_clipping(move, bound, noise)),
    "truncation to the grid forgotten": _moved(lambda move, bound, _: min(move.bound, 2 * bound)),
}


@pytest.mark.parametrize("name", REWARD_FAULTS)
def test_every_planted_fault_is_found_where_one_reward_is_the_unit(name: str) -> None:
    cases = [reward_case(seed, noise_multiplier=50.0) for seed in range(30)]
    assert not any(c.findings() for c in cases)
    assert sum(bool(c.findings(REWARD_FAULTS[name])) for c in cases) >= 3


def test_arithmetic_that_is_handed_in_stands_where_the_shipped_arithmetic_does() -> None:
    """Else a fault could be found for something that it is not."""
    for seed in range(20):
        found = case(seed)
        mechanism = mechanism_for(found.request, **found.settings)
        (values, event), (shipped, charged) = (
            play(mechanism, found.request, found.rows, SimulatedNoise(seed).stream("0"))
            for play in (SOUND_ARITHMETIC.play, through_the_door)
        )
        assert (values.tolist(), event) == (shipped.tolist(), charged)
        first = found.rows[:, :1]
        made, wanted = (
            releases(mechanism, found.request.weights, first, 3, SimulatedNoise(seed))
            for releases in (SOUND_ARITHMETIC.releases, empirical.releases)
        )
        assert made.tolist() == wanted.tolist()


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(name: str) -> None:
    sampling = "fixed-size" if name in FIXED_SIZE else "poisson"
    fixed = {"sample_rate": 0.5, "sampling": sampling, "n_blocks": 2, "calibration": "tight"}
    fixed["adjacency"] = Adjacency.ZERO_OUT
    cases = [case(seed, **fixed) for seed in range(20)]
    assert not any(c.findings() for c in cases)
    assert sum(bool(c.findings(FAULTS[name])) for c in cases) >= 5


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("algorithm", CASES, ids=str)
def test_every_release_of_every_algorithm_does_what_its_event_says(algorithm, sampling: str) -> None:
    public = {"space": problem().search_space, "n_clients": N_CLIENTS, "rounds": ROUNDS, "public_seed": 5}
    setting = Setting(**public, unit=algorithm.unit)
    rng = np.random.default_rng(0)
    requests = list(algorithm.algorithm.server(setting).plan())
    assert requests
    sampled = {"sample_rate": 0.5, "sampling": sampling}
    allowed = {
        "client": [sampled, sampled | {"calibration": "paper"}],
        "reward": [{"adjacency": Adjacency.REPLACE_ONE}],
    }
    for position, request in enumerate(requests):
        for settings in allowed[algorithm.unit]:
            client = int(np.argmax(np.linalg.norm(request.weights, axis=0)))
            rows = adversarial_rows(request, client, rng=rng)
            adversary = Adversary({"noise_multiplier": 1.0} | settings, request, client, rows, position)
            assert adversary.findings() == ()
