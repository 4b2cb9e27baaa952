from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch

from privbo.algorithms.thompson import clients, local_model, pooled
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations, Shared, ridge_mean
from privbo.protocol.messages import PlainEvaluate, Setting
from privbo.protocol.space import Categorical, Int, Real, Space
from tests.builders import release

PLANE = Space({"x": Real(0.0, 1.0), "y": Real(1e-3, 1e1, log=True)})
MIXED = Space({"kind": Categorical(("a", "b")), "depth": Int(1, 5), "rate": Real(0.0, 1.0)})
FINITE = Space({"kind": Categorical(("a", "b")), "depth": Int(1, 5)})
GRID = Space({"x": Int(0, 40), "y": Int(1, 9, log=True)})


def bumps(clients, units):
    """One smooth bump per client."""
    centre = 0.3 + 0.02 * (np.asarray(clients)[:, None] % 5)
    return np.exp(-6.0 * ((units - centre) ** 2).sum(axis=1))


@contextmanager
def machine_code(*, used):
    """Runs of any size by compiled code, or by NumPy and torch."""
    with ExitStack() as patched:
        for module in (clients, local_model, pooled):
            patched.enter_context(patch.object(module, "is_compiled", lambda *_, **__: used))
        yield


def observed(n=4, t=9, e=2, seed=0, absent=0.2):
    """Noisy waves that n clients know at t points; at least two values each, for a fit to fewer is its priors."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n, t)) >= absent
    mask[:, :2] = True
    points = rng.random((n, t, e))
    values = np.where(mask, np.sin(4 * points.sum(-1)) + 0.3 * rng.standard_normal((n, t)), 0.0)
    parts = {"embedded": points, "values": values, "mask": mask, "scale": 1.0 + rng.random(n)}
    return Observations(**{name: torch.tensor(part) for name, part in parts.items()})


def shared(embedded, mask=None):
    """A function that is uncertain in two directions, at some points."""
    angles = embedded.sum(-1)
    uncertainty = torch.stack([0.5 * torch.sin(2 * angles), 0.3 * torch.cos(5 * angles)], dim=-1)
    return Shared(mean=torch.cos(3 * angles) * (1.0 if mask is None else mask), uncertainty=uncertainty)


def hyperparameters(lengthscale, outputscale=1.0, noise=1e-2):
    """Models of clients with these length scales ``(n, n_embedded)``."""
    scales = torch.as_tensor(lengthscale, dtype=torch.float64)
    others = {"outputscale": outputscale, "noise": noise, "slope": torch.nan}
    ones = torch.ones(len(scales), dtype=torch.float64)
    return Hyperparameters(lengthscale=scales, **{name: torch.as_tensor(of) * ones for name, of in others.items()})


def moments(draw, dims):
    """Exact mean and covariance of ``draw``, an affine map of standard normals of these lengths."""
    normals = torch.cat([torch.zeros(1, sum(dims)), torch.eye(sum(dims))]).double()
    mean, *columns = (draw(*row[None].split(dims, dim=1))[0].numpy() for row in normals)
    map_ = (np.array(columns) - mean).T
    return mean, map_ @ map_.T


def answered(features, space, units, values):
    """What clients of the shared prior send: ridge weights of their centred values, of length one."""
    centred = torch.as_tensor(values - values.mean(axis=-1, keepdims=True))
    weights = ridge_mean(features(torch.as_tensor(space.embed(units))), centred, 0.1).numpy()
    lengths = np.linalg.norm(weights, axis=-1, keepdims=True)
    return weights / np.where(lengths > 0, lengths, 1.0)


def setting(space=PLANE, n_clients=6, rounds=4, public_seed=11):
    return Setting(space=space, n_clients=n_clients, rounds=rounds, public_seed=public_seed)


def noisy_sum(ask, answers, rng, noise=0.05):
    """A release as a door would make it, without clipping."""
    rows = np.where(np.isfinite(answers), answers, 0.0)
    values = ask.request.weights @ rows
    return release(values + noise * rng.standard_normal(values.shape), noise, ask.broadcast.round)


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
