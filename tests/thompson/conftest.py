import numpy as np
import pytest

from privbo.protocol.messages import PlainEvaluate, Release, Setting
from privbo.protocol.space import Categorical, Int, Real, Space

PLANE = Space({"x": Real(0.0, 1.0), "y": Real(1e-3, 1e1, log=True)})
MIXED = Space({"kind": Categorical(("a", "b")), "depth": Int(1, 5), "rate": Real(0.0, 1.0)})
FINITE = Space({"kind": Categorical(("a", "b")), "depth": Int(1, 5)})


def bumps(clients, units):
    """One smooth bump per client."""
    centre = 0.3 + 0.02 * (np.asarray(clients)[:, None] % 5)
    return np.exp(-6.0 * ((units - centre) ** 2).sum(axis=1))


class Counting:
    """Counts evaluations and remembers who was asked."""

    def __init__(self, function=bumps):
        self.function, self.calls = function, []

    def __call__(self, clients, units):
        self.calls.append((clients.copy(), units.copy()))
        return self.function(clients, units)


def setting(space=PLANE, n_clients=6, rounds=4, public_seed=11):
    return Setting(space=space, n_clients=n_clients, rounds=rounds, public_seed=public_seed)


def noisy_sum(ask, answers, rng, noise=0.05):
    """A release as a door would make it, without clipping."""
    rows = np.where(np.isfinite(answers), answers, 0.0)
    values = ask.request.weights @ rows
    return Release(
        round=ask.broadcast.round,
        values=values + noise * rng.standard_normal(values.shape),
        noise_stddev=noise,
        sequence=ask.broadcast.round,
        head="",
    )


def play(algorithm, where, evaluate=bumps, *, seed=5, clients=None, until=None):
    """All asks and answers of a run, or of its beginning, and the cohort."""
    server = algorithm.server(where)
    numbers = np.arange(where.n_clients) if clients is None else np.asarray(clients)
    cohort = algorithm.cohort(where, clients=numbers, evaluate=PlainEvaluate(evaluate), seed=seed)
    rng, trace = np.random.default_rng(0), []
    while len(trace) != until and (ask := server.ask()) is not None:
        answers = cohort.respond(ask.broadcast)
        trace.append((ask, answers))
        server.tell(None if ask.request is None else noisy_sum(ask, answers, rng))
    return trace, cohort


@pytest.fixture(scope="session", params=["mean", "sample"])
def share(request):
    return request.param
