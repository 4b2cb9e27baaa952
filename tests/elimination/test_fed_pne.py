"""Fed-PNE against its pseudo-code, written out with objects, and at its edges."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.settings import noise_half_width
from privbo.protocol.messages import FloatArray, IntArray, Release, Setting

PLAIN = pb.NoPrivacy()


def hills(clients: IntArray, units: FloatArray) -> FloatArray:
    """Two hills per client, moved a little; values in [0, 1]."""
    x = units[:, 0] + 0.01 * np.sin(clients)
    return np.asarray(0.5 + 0.3 * np.sin(7 * x) + 0.15 * np.cos(31 * x))


def problem(objective: Callable[[IntArray, FloatArray], FloatArray] = hills, n_clients: int = 20) -> pb.Problem:
    return pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=objective, n_clients=n_clients, name="hills")


Cell: TypeAlias = tuple[float, float]


def mean_of(m: int) -> Callable[[Cell], float]:
    return lambda cell: float(hills(np.arange(m), np.full((m, 1), sum(cell) / 2)).mean())


def phases(
    mean: Callable[[Cell], float], m: int, horizon: int, *, expand: str, tail: str, k: int = 2, c: float = 0.1
) -> tuple[list[tuple[float, int]], float]:
    """Centre and pulls of every node of the pseudo-code, and the best node; nu1 = 1, rho = 1/2, c1 = 1."""
    log = math.log(horizon * m)

    def tau(h: int) -> int:
        return math.ceil(c**2 * log * 4**h)

    def split(cells: list[Cell]) -> list[Cell]:
        return [(a + (b - a) * j / k, a + (b - a) * (j + 1) / k) for a, b in cells for j in range(k)]

    active, h, t, played, best = [(0.0, 1.0)], 0, 0, [], (0.0, 1.0)
    while t < horizon:
        while {"ktau": len(active) * tau(h) < m or h == 0, "tau": tau(h) < m, "none": False}[expand]:
            active, h = split(active), h + 1
        pulls = math.ceil(tau(h) / m)
        if len(active) * pulls > horizon - t:
            if tail == "commit":
                played.append((sum(best) / 2, horizon - t))
            else:
                for cell in active:
                    now = min(pulls, horizon - t)
                    if now:
                        played.append((sum(cell) / 2, now))
                    t += now
            break
        means = [mean(cell) for cell in active]
        played += [(sum(cell) / 2, pulls) for cell in active]
        t += pulls * len(active)
        b = c * math.sqrt(log / (m * pulls))
        top = max(means)
        best = active[means.index(top)]
        active = split([cell for cell, mu in zip(active, means, strict=True) if not mu + b + 0.5**h < top - b])
        h += 1
    return played, sum(best) / 2


def played(algorithm: pb.FedPNE, n_clients: int, privacy: Any = PLAIN, rounds: int = 50) -> list[tuple[float, int]]:
    """What the shipped algorithm made clients pull."""
    calls: list[tuple[float, int]] = []

    class Recorder:
        def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
            return hills(clients, units)

        def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
            calls.extend((float(x), int(n)) for x, n in zip(units[clients == 0, 0], counts[clients == 0], strict=True))
            return hills(clients, units)

    pb.run(problem(Recorder(), n_clients), algorithm, privacy=privacy, rounds=rounds, seed=1)
    return calls


@pytest.mark.parametrize("tail", ["commit", "printed"])
@pytest.mark.parametrize("expand", ["ktau", "tau", "none"])
@pytest.mark.parametrize(("n_clients", "horizon", "k"), [(1, 400, 2), (20, 700, 2), (20, 500, 3), (300, 300, 2)])
def test_plays_the_pseudo_code(tail: Any, expand: Any, n_clients: int, horizon: int, k: int) -> None:
    ours = played(pb.FedPNE(horizon=horizon, expand=expand, tail=tail, n_children=k), n_clients)
    wanted, _ = phases(mean_of(n_clients), n_clients, horizon, expand=expand, tail=tail, k=k)
    np.testing.assert_allclose(np.array(ours), np.array(wanted), rtol=1e-12)
    assert sum(n for _, n in ours) == horizon


FORMS = {
    "certified": pb.FedPNE(horizon=700),
    "client-centred": pb.FedPNE(horizon=700, centre="client"),
    "tight clipping": pb.FedPNE(horizon=700, centre="client", clip=0.01),
    "not widened": pb.FedPNE(horizon=700, widen=0.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_with_privacy_off_every_private_form_is_the_plain_algorithm(form: str) -> None:
    assert played(FORMS[form], 20) == played(pb.FedPNE(horizon=700), 20)
    wanted, _ = phases(mean_of(20), 20, 700, expand="ktau", tail="commit")
    np.testing.assert_allclose(played(FORMS[form], 20), wanted, rtol=1e-12)


def test_the_cap_holds_after_the_first_phase_and_is_named() -> None:
    setting = Setting(space=problem().search_space, n_clients=300, rounds=9, public_seed=0)
    server = pb.FedPNE.heuristic(horizon=3000).server(setting)
    sizes = []
    while (ask := server.ask()) is not None and ask.request is not None:
        sizes.append(ask.request.dim)
        assert ask.request.clipping_norm == pytest.approx(0.15 * math.sqrt(ask.request.dim))
        server.tell(
            Release(round=len(sizes), values=np.zeros((1, ask.request.dim)), noise_stddev=1.0, sequence=0, head="")
        )
    assert max(sizes[1:]) <= 8
    assert not pb.FedPNE.heuristic().is_certified
    assert pb.FedPNE().is_certified
    assert not pb.FedPNE(widen=0.5).is_certified
    assert not pb.FedPNE(clip=0.4).is_certified


def test_noise_widens_every_comparison() -> None:
    """A node goes exactly when it is behind by more than 2 b + 2 beta + nu1 rho^h."""
    setting = Setting(space=problem().search_space, n_clients=20, rounds=3, public_seed=0)
    algorithm = pb.FedPNE(horizon=700)
    for margin, stays in ((-1e-6, True), (1e-6, False)):
        server = algorithm.server(setting)
        phase = server.phase
        assert phase is not None
        confidence = algorithm.confidence(20)
        b = float(confidence.radius(int(phase.pulls[0]) * 20))
        beta = noise_half_width(0.01, len(phase.nodes), 3)
        behind = 2 * b + 2 * beta + confidence.variation(phase.depth) + margin
        values = np.zeros((1, len(phase.nodes)))
        values[0, 1:] = -behind
        server.tell(Release(round=0, values=values, noise_stddev=0.01, sequence=0, head=""))
        following = server.phase
        assert following is not None
        assert (len(following.nodes) == 2 * len(phase.nodes)) == stays
        assert (len(following.nodes) == 2) == (not stays)


def test_the_plan_bounds_every_run() -> None:
    """No noise makes more releases than planned; noise that never eliminates makes fewer."""
    space = problem().search_space
    for n_clients, horizon in ((5, 900), (100, 5000), (1000, 5000)):
        setting = Setting(space=space, n_clients=n_clients, rounds=100, public_seed=0)
        counts = set()
        for scale in (1e-9, 1e9):  # decisive, and hopeless, differences
            server = pb.FedPNE(horizon=horizon).server(setting)
            planned, made = len(list(server.plan())), 0
            while (ask := server.ask()) is not None and ask.request is not None:
                values = np.arange(ask.request.dim, dtype=float)[None]
                server.tell(Release(round=made, values=values, noise_stddev=scale, sequence=0, head=""))
                made += 1
            assert 1 <= made <= planned
            counts.add(made)
        assert max(counts) == planned


def test_rounds_limit_the_releases_and_the_rest_is_silent() -> None:
    calls = played(pb.FedPNE(horizon=700), 20, rounds=2)
    result = pb.run(problem(), pb.FedPNE(horizon=700), privacy=PLAIN, rounds=2, seed=1)
    assert len(result.releases) == 2
    assert sum(n for _, n in calls) == 700
    assert calls[-1][1] > 600


def test_stop_leaves_the_rest_of_the_horizon() -> None:
    calls = played(pb.FedPNE(horizon=700, tail="stop"), 20)
    assert sum(n for _, n in calls) < 700


def test_everyone_is_told_the_best_node() -> None:
    result = pb.run(problem(), pb.FedPNE(horizon=2000), privacy=PLAIN, rounds=50, seed=1)
    grid = np.linspace(0, 1, 2001)[:, None]
    average = np.mean([hills(np.full(len(grid), m), grid) for m in range(20)], axis=0)
    found = result.clients.recommended
    assert np.ptp(found) == 0
    at = np.mean([hills(np.array([m]), found[:1])[0] for m in range(20)])
    assert average.max() - at < 0.01


def test_the_first_phase_is_split_as_far_as_the_horizon_holds() -> None:
    """A thousand clients would split the root into 64 nodes at once; with 5 pulls each it is 4."""
    server = pb.FedPNE(horizon=5).server(Setting(space=problem().search_space, n_clients=1000, rounds=5, public_seed=0))
    assert server.phase is not None
    assert server.phase.pulls.tolist() == [1, 1, 1, 1]
