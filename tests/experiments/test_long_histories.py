"""The study of long histories: its player, and inducing points beside a model of the kept points."""

import dataclasses

import numpy as np
import torch

import privbo as pb
from experiments.baselines.inducing import Inducing, projected
from experiments.outcome import world
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.posterior import Observations, condition

PROBLEM = {
    "type": "experiments.problems.drawn_surfaces:gaussian_process",
    "n_clients": 2,
    "n_dims": 2,
    "correlation": 0.0,
    "noise": 0.3,
}
OWN = pb.OwnModel(max_points=100, fit_steps=8, n_candidates=64, refit_every=3)


def test_inducing_points_are_the_exact_model_where_all_points_are_kept() -> None:
    generator = np.random.default_rng(0)
    known = torch.from_numpy(generator.random((3, 30, 2)))
    seen = Observations(
        embedded=known,
        values=torch.sin(6.0 * known.sum(dim=-1)) + 0.1 * torch.from_numpy(generator.standard_normal((3, 30))),
        mask=torch.ones(3, 30, dtype=torch.bool),
        scale=torch.ones(3, dtype=torch.float64),
    )
    fitted = fit(start(OWN, 3, 2, torch.device("cpu")), seen, OWN, steps=20, compiled=True)
    places = torch.from_numpy(generator.random((1, 50, 2)))
    exact, whole = (
        condition(fitted, seen, OWN.kernel, compiled=True)(places),
        projected(fitted, seen, seen, OWN)(places),
    )
    for ours, theirs in zip(whole, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-4)
    half = dataclasses.replace(seen, **{name: getattr(seen, name)[:, ::2] for name in ("embedded", "values", "mask")})
    few, less = projected(fitted, seen, half, OWN)(places), condition(fitted, half, OWN.kernel, compiled=True)(places)
    assert (few[0] - exact[0]).abs().mean() < 0.8 * (less[0] - exact[0]).abs().mean()  # the other half's values tell


def test_clients_with_inducing_points_go_on_beyond_them() -> None:
    problem = world(PROBLEM, 0).problem()
    few = dataclasses.replace(OWN, max_points=8)
    runs = [
        pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=14, seed=1).clients
        for algorithm in (Inducing(own=few), pb.SharedPrior(own=few).local())
    ]
    np.testing.assert_array_equal(runs[0].units[:, :4], runs[1].units[:, :4])
    assert not np.allclose(runs[0].units, runs[1].units)
    assert np.isfinite(runs[0].values).all()
