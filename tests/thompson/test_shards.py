"""Whole cohorts cut into shards: every client's points, answers and models to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.thompson.posterior import is_compiled
from privbo.protocol.messages import PlainEvaluate
from tests.thompson.conftest import GRID, MIXED, PLANE, bumps, machine_code, noisy_sum, setting

N, ROUNDS = 10, 9
OWN = pb.OwnModel(fit_steps=8, n_candidates=64)
FORMS = {
    "log-ei": (pb.SharedPrior(own=OWN), PLANE),
    "log-ei, mixed": (pb.SharedPrior(own=OWN), MIXED),
    "thompson": (pb.SharedPrior(own=OWN, acquisition="thompson"), PLANE),
    "paper": (pb.DPFTSDE(own=OWN), PLANE),
    "paper, mixed": (pb.DPFTSDE(own=OWN), MIXED),
    "exact": (pb.DPFTSDE(own=replace(OWN, draw="exact")), PLANE),
    "exact, grid": (pb.DPFTSDE(own=replace(OWN, draw="exact", n_candidates=400)), GRID),
    "exact, common": (pb.DPFTSDE(own=replace(OWN, draw="exact", n_candidates=400, refit_every=0)), GRID),
    "features": (pb.DPFTSDE(own=replace(OWN, draw="features")), MIXED),
}


def failing(clients, units):
    """Of every seventh client the right half of the first coordinate fails."""
    return np.where((clients % 7 == 0) & (units[:, 0] > 0.5), np.nan, bumps(clients, units))


def played(algorithm, where, shards):
    """Everything the clients answer, evaluate and fit, from cohorts that hear the same broadcasts."""
    server, rng, found = algorithm.server(where), np.random.default_rng(0), {}
    cohorts = [algorithm.cohort(where, clients=part, evaluate=PlainEvaluate(failing), seed=3) for part in shards]
    while (ask := server.ask()) is not None:
        answers = np.concatenate([cohort.respond(ask.broadcast) for cohort in cohorts])
        found[f"answers of round {ask.broadcast.round}"] = answers
        server.tell(None if ask.request is None else noisy_sum(ask, answers, rng))
    for name in set(cohorts[0].snapshot()) - {"rounds"}:
        found[name] = np.concatenate([cohort.snapshot()[name] for cohort in cohorts])
    return found


@pytest.mark.parametrize("used", [True, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_a_client_does_not_depend_on_the_sharding(form, used):
    algorithm, space = FORMS[form]
    where = setting(n_clients=N, rounds=ROUNDS, space=space)
    with machine_code(used=used):
        whole = played(algorithm, where, [np.arange(N)])
        assert any(values.size for name, values in whole.items() if name.startswith("answers"))
        for parts in (3, N):
            for name, values in played(algorithm, where, np.array_split(np.arange(N), parts)).items():
                np.testing.assert_array_equal(values, whole[name], err_msg=f"{name} in {parts} shards")


def test_small_runs_do_not_wait_for_a_compiler_whoever_takes_part():
    """40 clients of 20 rounds on a processor are the last, of 10 with draws."""
    small = setting(n_clients=40, rounds=20)
    assert not is_compiled(small)
    assert is_compiled(setting(n_clients=41, rounds=20))
    assert is_compiled(setting(n_clients=40, rounds=21))
    assert is_compiled(small, draws=True)
    assert not is_compiled(setting(n_clients=40, rounds=10), draws=True)
    assert not is_compiled(replace(small, n_clients=10_000, device="cuda"), draws=True)
