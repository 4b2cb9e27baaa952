"""What DP-FTS-DE is measured on: clients, rounds and the paper's settings of each experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, TypeAlias

import privbo as pb
from experiments import activity, landmine, synthetic, writers
from privbo.protocol.messages import ClientHistory, FloatArray

Scale: TypeAlias = Literal["small", "paper"]
N_INIT = 10
REFIT = 5  # rounds between fits of own models on real data; as the authors' code does


class Clients(Protocol):
    """Simulated clients and how an experiment judges what they evaluated."""

    def problem(self) -> pb.Problem:
        """What they optimise."""
        ...

    def losses(self, history: ClientHistory) -> FloatArray:
        """Loss of every evaluation, ``(n_clients, n_evaluations)``, smaller is better; no observation noise."""
        ...


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One experiment of the paper.

    Attributes:
        clients: Makes the clients of a seed.
        measure: What a loss is.
        rounds: T.
        n_clients: N.
        paper: DP-FTS-DE with the paper's settings, noise aside.
        ours: The same with what this project recommends.
        sample_rate: q of the paper's reference run.
        runs: Seeds at paper scale.
        first_seed: Seeds start here (settings of ours were chosen on others).
    """

    name: str
    clients: Callable[[int], Clients]
    measure: str
    rounds: int
    n_clients: int
    paper: pb.DPFTSDE
    ours: pb.DPFTSDE
    sample_rate: float
    runs: int
    first_seed: int = 0


def synthetic_paper(n_regions: int = 2, clipping_norm: float = 11.0) -> pb.DPFTSDE:
    """The paper's synthetic setting (Section 5.1, App. B): M = 50, 1 - p_t = 1/sqrt(t), the short temperature schedule.

    Kernels are those the functions are drawn from and the observation noise is known, so
    nothing is fitted and own draws are joint draws at the whole grid. The paper names no
    regularisation of the features; 0.25 is about the noise's share of the values' variance.
    """
    lengthscale = pb.Prior(median=synthetic.LENGTHSCALE, spread=0.5, low=1e-3, high=1.0)
    own = pb.OwnModel(
        kernel="se",
        draw="exact",
        n_candidates=synthetic.GRID,
        refit_every=0,
        lengthscale=lengthscale,
        noise_variance=synthetic.NOISE_STDDEV**2,
    )
    return pb.DPFTSDE(
        n_regions=n_regions,
        n_features=50,
        clipping_norm=clipping_norm,
        share="sample",
        n_init=N_INIT,
        exploration=pb.Exploration(power=0.5),
        weighting=pb.Weighting(schedule="synthetic"),
        lengthscale=synthetic.LENGTHSCALE,
        noise=0.25,
        features="phase",
        own=own,
    )


def synthetic_ours() -> pb.DPFTSDE:
    """Means on regular features, a bound that clips everyone, 20 rounds of informed steps; chosen on seeds 0 to 9."""
    return replace(
        synthetic_paper(1),
        share="mean",
        features="regular",
        noise=0.1,
        clipping_norm=1.0,
        federated_step="informed",
        exploration=pb.Exploration(power=0.0),
        local_after=20,
    )


def real_ours(power: float = 1.0) -> pb.DPFTSDE:
    """The package's defaults with the paper's initial points and trust in oneself."""
    own = pb.OwnModel(refit_every=REFIT)
    return pb.DPFTSDE(n_init=N_INIT, exploration=pb.Exploration(power=power), own=own)


def real_paper() -> pb.DPFTSDE:
    """The paper's real-world setting."""
    paper = pb.DPFTSDE.paper(n_init=N_INIT)
    return replace(paper, own=replace(paper.own, refit_every=REFIT))


def authors_code(paper: pb.DPFTSDE) -> pb.DPFTSDE:
    """What the authors' landmine code does beyond the paper's text.

    A point evaluated before is replaced by a random one; raw values under a prior of mean 0; an
    SE kernel with one length scale, its hyperparameters by maximum likelihood; own draws from
    100 random features. They start each fit ten times; here priors are flat on any scale that
    matters, and one start at much noise comes within 2 of their likelihood's logarithm at 50
    points (a start at little noise stays at short length scales, 25 below).
    """

    def flat(start: float, low: float, high: float) -> pb.Prior:
        return pb.Prior(median=start, spread=5.0, low=low, high=high)

    own = pb.OwnModel(
        kernel="se",
        draw="features",
        n_features=100,
        refit_every=REFIT,
        fit_steps=80,
        ard=False,
        lengthscale=flat(1.0, 0.02, 100.0),
        outputscale=flat(0.3, 1e-4, 1e3),
        noise=flat(1e-2, 1e-5, 10.0),
    )
    return replace(paper, values="raw", repeats="replace", own=own)


def _synthetic(n_clients: int, rounds: int, runs: int, alpha: float | None = None) -> Benchmark:
    clients = (
        partial(synthetic.homogeneous, n_clients=n_clients)
        if alpha is None
        else partial(synthetic.heterogeneous, n_clients=n_clients, alpha=alpha)
    )
    return Benchmark(
        name="synthetic" if alpha is None else f"synthetic, alpha={alpha:g}",
        clients=clients,
        measure="simple regret",
        rounds=rounds,
        n_clients=n_clients,
        paper=synthetic_paper(),
        ours=synthetic_ours(),
        sample_rate=0.25,
        runs=runs,
        first_seed=110,
    )


def _real(name: str, clients: Callable[[int], Clients], measure: str, n_clients: int, rounds: int) -> Benchmark:
    return Benchmark(
        name=name,
        clients=clients,
        measure=measure,
        rounds=rounds,
        n_clients=n_clients,
        paper=real_paper(),
        ours=real_ours(),
        sample_rate=0.35,
        runs=10,
    )


def _few_points(name: str, clients: Callable[[int], Clients], n_clients: int, rounds: int) -> Benchmark:
    """Where sharing can help: scales that suit the parameters, two initial points, few rounds."""
    found = _real(name, clients, "validation error", n_clients, rounds)
    return replace(found, paper=replace(found.paper, n_init=2), ours=pb.DPFTSDE())


def benchmark(name: str, scale: Scale) -> Benchmark:
    """An experiment by its name; ``"small"`` has fewer clients or rounds and two seeds.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    paper = scale == "paper"
    rounds = 60 if paper else 10
    match name:
        case "synthetic":
            found = _synthetic(200 if paper else 40, 40 if paper else 12, 20)
        case "alpha-0.7" | "alpha-1":
            found = _synthetic(50 if paper else 20, 40 if paper else 12, 20, float(name.removeprefix("alpha-")))
        case "landmine":
            found = _real(name, landmine.clients, "1 - AUC", 29, rounds)
        case "landmine-authors":
            found = _real("landmine, authors' random scores", landmine.authors_clients, "1 - AUC", 29, rounds)
            # Every arm replaces repeated points, or that would be all that is compared.
            found = replace(found, paper=authors_code(found.paper), ours=replace(found.ours, repeats="replace"))
        case "activity-log":
            found = _few_points("activity, log scales", activity.log_clients, 30, 20 if paper else 10)
        case "writers-log":
            found = _few_points("writers, log scales", writers.log_clients, 50, 20 if paper else 10)
        case "activity":
            found = _real(name, activity.clients, "validation error", 30, rounds)
        case "writers":
            found = _real(name, writers.clients, "validation error", 50, rounds)
        case _:
            raise pb.ConfigurationError(f"benchmark {name!r} is unknown")
    return found if paper else replace(found, runs=2)
