"""All eliminations at their edges: one client, ties, clients that leave, rewards and horizons out of range."""

import dataclasses
import math

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, Setting
from privbo.runs.offer import always
from privbo.testing import Subject
from tests.conformance.cases import N_CLIENTS, bumps, problem

PRIVACIES = {
    "plain": pb.NoPrivacy(),
    "client": pb.Privacy(epsilon=2.0, noise="simulation"),
    "reward": pb.Privacy(epsilon=2.0, noise="simulation", unit="reward"),
}
SHARED = {
    "fed-pne": pb.FedPNE(horizon=300),
    "fed-pne heuristic": pb.FedPNE.heuristic(horizon=300),
    "pf-pne": pb.PFPNE(horizon=200),
    "pf-pne printed": pb.PFPNE(horizon=200, stage2="printed", tail="printed"),
    "pf-pne warm": pb.PFPNE(horizon=200, stage2="warm"),
    "parallel": pb.ParallelXArmed(horizon=300),
}
KINDS = [pb.FedPNE, pb.PFPNE, pb.ParallelXArmed, PersonalElimination]
ALL = SHARED | {
    "pe": PersonalElimination(horizon=200),
    "pe printed": PersonalElimination(horizon=200, stage2="printed"),
}


def hill(clients: IntArray, units: FloatArray) -> FloatArray:
    return np.asarray(0.9 - 0.8 * np.abs(units[:, 0] - 0.3 - 0.01 * (clients % 3)))


class Counting:
    """An objective that counts every client's pulls and fails for some of them after a while."""

    def __init__(self, n_clients: int, leaves: dict[int, int] | None = None, objective=hill) -> None:
        self.pulls = np.zeros(n_clients, dtype=np.int64)
        self._leaves, self._objective = leaves or {}, objective

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        values = self._objective(clients, units)
        for row, client in enumerate(clients):
            self.pulls[client] += 1
            if self.pulls[client] > self._leaves.get(int(client), math.inf):
                values[row] = np.nan
        return values


def run(algorithm, objective, n_clients: int, privacy=PRIVACIES["plain"]) -> pb.Record:
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=objective, n_clients=n_clients, name="edges")
    return pb.run(problem, always(algorithm), privacy=privacy, rounds=40, seed=1)


@pytest.mark.parametrize("privacy", PRIVACIES)
@pytest.mark.parametrize("name", ALL)
def test_a_single_client_is_served(name: str, privacy: str) -> None:
    objective = Counting(1)
    asked = PRIVACIES["plain"] if name.startswith("pe") else PRIVACIES[privacy]
    result = run(ALL[name], objective, 1, asked)
    assert result.clients.recommended.shape == (1, 1)
    assert objective.pulls[0] <= ALL[name].horizon
    if privacy == "plain":
        assert abs(result.clients.recommended[0, 0] - 0.3) < 0.15


@pytest.mark.parametrize("privacy", ["plain", "reward"])
@pytest.mark.parametrize("name", SHARED)
def test_clients_that_leave_for_good_cost_their_share_and_nothing_else(name: str, privacy: str) -> None:
    """One never answers, one leaves in its first phase, one later; the others end near the top."""
    objective = Counting(8, leaves={1: 0, 4: 2, 6: 40})
    result = run(SHARED[name], objective, 8, PRIVACIES[privacy])
    whole = run(SHARED[name], Counting(8), 8, PRIVACIES[privacy])
    assert len(result.releases) >= 1
    assert all(np.isfinite(r.values).all() for r in result.releases)
    assert np.isfinite(result.clients.recommended).all()
    assert np.isnan(result.clients.values[1]).all()
    assert np.all(objective.pulls <= SHARED[name].horizon)
    if privacy == "plain":
        staying = [0, 2, 3, 5, 7]
        found = hill(np.array(staying), result.clients.recommended[staying])
        best = hill(np.array(staying), whole.clients.recommended[staying])
        assert np.all(found > best - 0.1)


@pytest.mark.parametrize("privacy", ["plain", "client"])
@pytest.mark.parametrize("name", ALL)
def test_where_the_objective_fails_nobody_stays_and_nothing_is_announced(name: str, privacy: str) -> None:
    """A third of the space fails, which a client's absence would hide: its whole vector would go."""
    pulls = Counting(400), Counting(400)

    def half(clients: IntArray, units: FloatArray) -> FloatArray:
        fails = units[:, 0] > 0.65
        pulls[1](clients[fails], units[fails])
        return np.where(fails, np.nan, pulls[0](clients, units))

    asked = PRIVACIES["plain"] if name.startswith("pe") else PRIVACIES[privacy]
    result = run(ALL[name], half, 400, asked)
    assert np.abs(result.clients.recommended - 0.3).max() < 0.25
    assert pulls[1].pulls.max() < 0.4 * ALL[name].horizon
    assert (result.clients.evaluations == pulls[0].pulls).all()
    if result.common is not None:
        assert abs(result.common.params["x"] - 0.3) < 0.1


def test_pulls_that_fail_narrow_no_interval() -> None:
    """Of the right half's pulls one works, and badly: by itself it proves nothing, so the half is split."""
    seen = list[float]()

    def shaky(clients: IntArray, units: FloatArray) -> FloatArray:
        x = float(units[0, 0])
        seen.append(x)
        return np.array([np.nan if x == 0.75 and seen.count(x) > 1 else 0.9 if x < 0.5 else 0.0])

    run(PersonalElimination(horizon=2000, nu1=0.25, c=0.4, stage2="printed"), shaky, 1)
    assert 0.625 in seen


THIN = [
    {"privacy": pb.Privacy(epsilon=2.0, noise="simulation", sample_rate=0.5)},
    {"privacy": pb.Privacy(epsilon=2.0, noise="simulation", sampling="random-allocation", participations=1)},
    {"privacy": PRIVACIES["client"], "attendance": pb.Attendance(dropout=0.5)},
]


@pytest.mark.parametrize("thin", THIN, ids=["sampled", "allotted", "away"])
def test_a_certified_form_says_where_not_all_clients_are_in_every_release(thin) -> None:
    """Its radii count the pulls of all."""
    for algorithm in (pb.FedPNE(horizon=60), pb.FedPNE.heuristic(horizon=60)):
        for asked in (thin, {"privacy": PRIVACIES["client"]}):
            caveat = pb.run(problem(), always(algorithm), rounds=3, seed=1, **asked).manifest.caveat
            if algorithm.is_certified and asked is thin:
                assert "radii count the pulls of all clients" in (caveat or "")
            else:
                assert caveat == algorithm.caveat


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ALL)
def test_plateaus_and_ties_lead_to_the_end(name: str, value: float) -> None:
    objective = Counting(5, objective=lambda clients, units: np.full(len(clients), value))
    result = run(ALL[name], objective, 5)
    assert np.isfinite(result.clients.recommended).all()
    assert len(set(objective.pulls.tolist())) == 1


@pytest.mark.parametrize("privacy", PRIVACIES)
@pytest.mark.parametrize("name", SHARED)
def test_a_reward_outside_its_range_stops_nobody_and_its_client_is_told(name: str, privacy: str) -> None:
    def loud(clients: IntArray, units: FloatArray) -> FloatArray:
        return np.where(clients == 2, 1.01, hill(clients, units))

    releases = len(run(SHARED[name], hill, 4, PRIVACIES[privacy]).releases)
    clipped = run(SHARED[name], loud, 4, PRIVACIES[privacy])
    assert len(clipped.releases) == releases
    assert np.nanmax(clipped.clients.values[2]) == 1.0
    assert list(clipped.failures) == [2]
    assert "clipped" in clipped.failures[2]
    assert "1.01" not in clipped.failures[2]


def announced(name: str, pulls: int, *, sends: bool = True):
    """What a server says of a phase of two nodes."""
    found = {"depth": np.array(1), "nodes": np.array([0, 1])}
    if name.startswith("pf-pne"):
        return found | {"pulls": np.array(pulls)}
    return found | {"pulls": np.array([pulls, pulls]), "best": np.array([1, 0]), "sends": np.array(sends)}


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("name", SHARED)
def test_no_phase_that_a_server_announces_takes_more_pulls_than_a_client_has_left(name: str, sends: bool) -> None:
    """Planted: a million pulls in silence, numbers whose sum overflows, and one pull behind the budget."""
    algorithm = dataclasses.replace(SHARED[name], horizon=300, evaluations=100)
    objective = Counting(3)
    cohort = Subject(algorithm=algorithm).cohort([0, 1, 2], objective)

    def play(round_: int, pulls: int) -> None:
        cohort.respond(Broadcast(round=round_, arrays=announced(name, pulls, sends=sends)))

    for pulls, left in ((10**6, 100), (2**62, 100), (51, 100)):
        with pytest.raises(pb.ConfigurationError, match=f"a phase of {2 * pulls} pulls, where {left} of"):
            play(0, pulls)
    assert objective.pulls.tolist() == [0, 0, 0]
    play(0, 40)
    with pytest.raises(pb.ConfigurationError, match="a phase of 22 pulls, where 20 of"):
        play(1, 11)
    with pytest.raises(pb.ConfigurationError, match="each with 1 or more"):
        play(1, -5)
    play(1, 10)
    assert objective.pulls.tolist() == [100, 100, 100]


@pytest.mark.parametrize("n_clients", [1, 300])
@pytest.mark.parametrize("algorithm", [pb.PFPNE(), pb.PFPNE(gap=0.9), pb.ParallelXArmed()], ids=str)
def test_the_root_is_released_where_every_release_is_or_nothing_else_fits(algorithm, n_clients: int) -> None:
    setting = Setting(space=pb.Space({"x": pb.Real(0, 1)}), n_clients=n_clients, rounds=99, public_seed=0)
    servers = [each.server(setting) for each in (algorithm, always(algorithm))]
    assert [server.phase.depth for server in servers] == [1, 0]
    useful, all_ = (len(list(server.plan())) for server in servers)
    assert useful == max(1, all_ - 1)
    assert dataclasses.replace(algorithm, nu1=3.0, horizon=1).server(setting).phase.depth == 0


@pytest.mark.parametrize("settings", [{"rho": 0.003}, {"nu1": 1e-200}, {"nu1": 1e-320}, {"c": 1e200}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_doubles_are_refused_before_any_pull_or_play_to_the_end(kind, settings) -> None:
    algorithm = kind(horizon=60, **{name: value for name, value in settings.items() if hasattr(kind(), name)})
    try:
        record = pb.run(problem(), algorithm, privacy=PRIVACIES["plain"], rounds=9, seed=1)
    except pb.ConfigurationError as error:
        assert "pulls of a client do not hold one phase" in str(error)  # noqa: PT017 (either is right)
    else:
        assert np.isfinite(record.clients.recommended).all()


def test_a_finite_space_is_played_to_its_last_value_and_no_further() -> None:
    """Of four values and a horizon for far deeper trees; who starts below the survivors has nothing below them."""
    made = dataclasses.replace(problem(), space={"x": pb.Int(1, 4)})
    for algorithm in (pb.FedPNE(horizon=500), pb.PFPNE(horizon=500), pb.PFPNE(horizon=500, stage2="warm")):
        record = pb.run(made, always(algorithm), privacy=PRIVACIES["plain"], rounds=40, seed=1)
        assert max(len(release.values[0]) for release in record.releases) <= 4
        assert len(record.releases) <= 3
        assert (record.clients.evaluations == 500).all()


BAD = [
    *({"nu1": 0.0}, {"rho": 0.0}, {"rho": 1.0}, {"c": math.nan}, {"c1": 0.0}, {"horizon": 2.5}, {"n_children": 5}),
    *({"clip": math.inf}, {"clip": 0.0}, {"widen": math.nan}, {"widen": -1.0}, {"centre": "median"}, {"gap": 0.0}),
    *({"reward_range": (1.0, 1.0)}, {"cap": 2, "n_children": 3}, {"delta_b": 1.0}),
    *({"tail": "none"}, {"stage2": "cold"}),
]
REFUSED = [
    (kind, bad) for kind in KINDS for bad in BAD if set(bad) <= {field.name for field in dataclasses.fields(kind)}
]


@pytest.mark.parametrize(("kind", "settings"), REFUSED, ids=lambda v: v.__name__ if isinstance(v, type) else str(v))
def test_settings_out_of_range_are_refused_by_name(kind, settings) -> None:
    with pytest.raises(pb.ConfigurationError, match=next(iter(settings))):
        run(kind(**settings), hill, 2)


# ---- one reward as the unit of privacy: what it moves, and who refuses

CHANGED = 2  # the client one of whose rewards is another one
ALGORITHMS = [
    pb.FedPNE(horizon=300, c=0.05),
    pb.FedPNE(horizon=300, c=0.05, centre="client", clip=0.1),
    pb.PFPNE(horizon=120, c=0.05, stage2="in-phase"),
    pb.PFPNE(horizon=120, c=0.05, centre="client"),
    pb.ParallelXArmed(horizon=200, nu1=2.0, rho=0.7),
    pb.ParallelXArmed(horizon=200, nu1=2.0, rho=0.7, centre="client"),
]


def answers(algorithm, turn: int, reward: float, failing: bool) -> list[tuple[FloatArray, float]]:
    """Every client's vectors over a run whose releases are fixed noise, with the bound each request states.

    Rewards come in the order in which clients earn them; one of them is another one in the second world.
    """
    table = np.random.default_rng(0).random((N_CLIENTS, 400))
    table[:, 1::3] = np.nan if failing else table[:, 1::3]
    table[CHANGED, turn] = reward
    left = [iter(row) for row in table]  # a client may stand in a batch once per node
    subject = Subject(algorithm=algorithm, unit="reward", rounds=9)
    cohort = subject.cohort(evaluate=lambda clients, _: np.array([next(left[client]) for client in clients]))
    found = [(cohort.respond(ask.broadcast), ask.request) for _, ask in subject.asks()]
    return [(vectors, request.unit_bound or 0.0) for vectors, request in found if request is not None]


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_one_reward_moves_one_vector_of_one_release_by_no_more_than_stated(algorithm, failing: bool) -> None:
    """Worlds that differ in one reward, at every early turn, between the ends of the range and a failure."""
    tightest = 0.0
    for turn in range(0, 40, 7):
        worlds = [answers(algorithm, turn, value, failing) for value in (0.0, 1.0, np.nan)]
        for other in worlds[1:]:
            moved = [np.linalg.norm(a - b, axis=1) for (a, _), (b, _) in zip(worlds[0], other, strict=True)]
            assert sum(bool(np.any(m > 0)) for m in moved) <= 1  # one release at most
            for norms, (_, bound) in zip(moved, other, strict=True):
                assert np.all(np.delete(norms, CHANGED) == 0)
                assert norms[CHANGED] <= bound
                tightest = max(tightest, norms[CHANGED] / bound)
    assert tightest > 0.5  # and the statement is no idle one


@pytest.mark.parametrize("algorithm", [pb.DPFTSDE(n_features=12), pb.FederatedFLCB()], ids=str)
def test_algorithms_that_reuse_rewards_are_refused(algorithm) -> None:
    """Their vectors rest on every evaluation so far, so one reward enters all later releases."""
    with pytest.raises(pb.ConfigurationError, match="for one client only"):
        pb.plan(problem(), algorithm, privacy=pb.Privacy(epsilon=1.0, unit="reward"), rounds=4)


def test_what_a_mean_of_many_pulls_hides_is_not_used_where_one_reward_is_the_unit() -> None:
    class Shaky:
        def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
            return bumps(clients, units)

        pull = staticmethod(lambda clients, units, counts: np.where(clients == 1, np.nan, bumps(clients, units)))

    shaky = pb.Problem(space=problem().space, batch_objective=Shaky(), n_clients=7, name="shaky")
    privacy = pb.Privacy(epsilon=1.0, unit="reward", noise="simulation")
    plain = dataclasses.replace(shaky, batch_objective=bumps)
    first, second = (
        pb.run(each, pb.FedPNE(horizon=400, c=0.02), privacy=privacy, rounds=4, seed=0) for each in (shaky, plain)
    )
    np.testing.assert_array_equal(first.clients.values, second.clients.values)
    assert not first.failures


@pytest.mark.parametrize("stage2", ["optimistic", "in-phase", "printed", "warm"])
def test_a_refused_phase_tells_nothing_of_what_a_client_has_left(stage2: str) -> None:
    """After a silent round no shared phase follows, however few pulls it asks for and whatever they have earned."""
    subject = Subject(algorithm=pb.PFPNE(horizon=300, c=0.05, stage2=stage2))
    for slope in (1.0, 0.0):
        cohort, again = (subject.cohort(evaluate=lambda _, at, slope=slope: slope * at[:, 0]) for _ in range(2))
        cohort.respond(Broadcast(round=0, arrays={"alone": np.array(4), "last": np.array(False)}))
        again.restore(cohort.snapshot())
        phase = {"depth": np.array(1), "nodes": np.arange(2), "pulls": np.array(1)}
        for each in (cohort, again):
            with pytest.raises(pb.ConfigurationError, match="a phase of 2 pulls, where 0 of horizon"):
                each.respond(Broadcast(round=1, arrays=phase))
