"""Policies, events and ledgers that several tests share."""

from pathlib import Path
from typing import Any

from accountant import events
from accountant.events import Basic, repeat
from accountant.ledger import Budget, Ledger, LedgerPolicy, Receipt
from accountant.ledger.book import Declaration


def policy(budget: Budget | None = None, **changes: object) -> LedgerPolicy:
    """A policy of 40 clients of which one is zeroed out, changed where asked."""
    plain = {"unit": events.Unit.CLIENT, "adjacency": events.Adjacency.ZERO_OUT, "population": "p", "n_clients": 40}
    return LedgerPolicy(**(plain | {"budget": budget} | changes))


def _times(event: Basic, count: int | None) -> Any:  # a kind of event, or a composition
    return event if count is None else repeat(event, count)


def gaussian(z: float, count: int | None = None) -> Any:
    """Gaussian noise; all clients take part."""
    return _times(events.Gaussian(noise_multiplier=z), count)


def poisson(q: float, z: float, count: int | None = None) -> Any:
    """A Poisson sample with Gaussian noise, or so many of them."""
    return _times(events.PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), count)


def fixed(n: int, size: int, z: float, count: int | None = None) -> Any:
    """A sample of so many of ``n`` clients."""
    return _times(events.FixedSizeSampledGaussian(n_clients=n, sample_size=size, noise_multiplier=z), count)


def truncated(n: int, q: float, size: int, z: float, count: int | None = None) -> Any:
    """A Poisson sample of which at most ``size`` stay, or so many of them."""
    event = events.TruncatedPoissonSampledGaussian(n_clients=n, sample_rate=q, batch_size=size, noise_multiplier=z)
    return _times(event, count)


def allocated(rounds: int, k: int, z: float, count: int | None = None) -> Any:
    """``k`` participations of so many rounds, or so many such runs."""
    return _times(events.RandomAllocationGaussian(n_rounds=rounds, participations=k, noise_multiplier=z), count)


def laplace(b: float, count: int | None = None) -> Any:
    """Laplace noise; all clients take part."""
    return _times(events.Laplace(scale_multiplier=b), count)


def sampled_laplace(q: float, b: float, count: int | None = None) -> Any:
    """A Poisson sample with Laplace noise."""
    return _times(events.PoissonSampledLaplace(sample_rate=q, scale_multiplier=b), count)


def best(run: Any, eta: float = 1.0, gamma: float = 0.1) -> events.BestOfRandomRuns:
    """The best of a random number of runs."""
    return events.BestOfRandomRuns(run=run, eta=eta, gamma=gamma)


def lengths(z: float) -> events.MixtureOfGaussians:
    """A sum that moves by 0, 1 or 2."""
    return events.MixtureOfGaussians(noise_multiplier=z, sensitivities=(0.0, 1.0, 2.0), chances=(0.5, 0.25, 0.25))


POISSON, EVENT = poisson(0.3, 2.0), gaussian(8.0)
# One event of every kind, by its name; those that sample do so from 40 clients.
EXAMPLES: dict[str, Basic] = {
    "gaussian": gaussian(2.0),
    "poisson-sampled-gaussian": POISSON,
    "fixed-size-sampled-gaussian": fixed(40, 10, 2.0),
    "truncated-poisson-sampled-gaussian": truncated(40, 0.25, 16, 2.0),
    "random-allocation-gaussian": allocated(5, 2, 2.0),
    "mixture-of-gaussians": lengths(2.0),
    "zero-concentrated": events.ZeroConcentrated(rho=0.125, xi=0.01),
    "laplace": laplace(2.0),
    "poisson-sampled-laplace": sampled_laplace(0.3, 2.0),
    "best-of-random-runs": best(POISSON, gamma=0.25),
    "non-private": events.NonPrivate(),
}


def new_ledger(path: Path | None = None, **settings: object) -> Ledger:
    """A ledger under such a policy, in memory unless it has a path."""
    return Ledger.create(path, policy(**settings))


def charge(ledger: Ledger, release_id: str, event: Basic = EVENT, **said: object) -> Receipt:
    """Charge a release of the run that its id begins with, of secure noise unless something else is said."""
    return ledger.charge(release_id, event, **{"run": release_id.partition("/")[0], "noise_source": "secure"} | said)


def declared(run: str = "r", count: int = 4, event: Basic = EVENT, **settings: object) -> Declaration:
    """A run's plan of so many equal releases."""
    plain = {"events": ((event, count),), "settings": "s", "plan": "p", "delta": 1e-5, "noise_source": "secure"}
    return Declaration(run=run, **plain | settings)
