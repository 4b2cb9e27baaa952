"""Group privacy: events under which the presence of k units together is hidden, as tightly as is proven.

The neighbours are a data set with all k units and one without any of them (under zero-out: with all k contributions
zeroed). ``of_group`` says what a release is for them:

- Gaussian and Laplace noise, everybody taking part: contributions add up to at most k times one, so the multiplier is
  divided by k, exactly, under every adjacency;
- a Poisson sample: every unit of the group joins independently, so with chance Binomial(k, q) of j the sum moves by
  the lengths of j contributions. Domination by ``MixtureOfGaussians`` of the lengths 0 .. k is proven below;
- a mixture of Gaussians: k such lengths, independent, are added;
- zero-concentrated (xi, rho): (xi k (1 + 1/2 + ... + 1/k), rho k^2) (Bun and Steinke 2016, Proposition 27);
- the best of a random number of runs: the same of a run as it is for the group. Its theorem takes the Rényi curve of a
  run between any two data sets, and those with and without the group are two.

Everything else is refused: of samples of a fixed or bounded size and of secret rounds nothing tight is proven.

**Claim.** Let S be a random set with chances p_S, and |v_S| <= c_S. Then the pair of sum p_S N(v_S, z^2 I) against
N(0, z^2 I) is dominated by that of sum p_S N(c_S, z^2) against N(0, z^2), in both directions.

**Proof.** Under N(0, z^2 I) the likelihood ratio is r = sum p_S exp(X_S - Var(X_S) / 2) with X_S = <x, v_S> / z^2.
These are jointly Gaussian, with covariances <v_S, v_T> / z^2 <= c_S c_T / z^2: those of the second pair, in which
X_S = c_S x / z^2. By Kahane's inequality (1986) E f(r) is no smaller where covariances are larger, for every convex f.
Both directions' hockey sticks are such: E (r - g)_+ and E (1 - g r)_+. What the others contribute shifts both laws
alike and does not depend on the group's coins; told, it only helps the adversary. (Also Ganesh 2024, by another proof.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from accountant.errors import AccountingError, EventError
from accountant.events import (
    Adjacency,
    Basic,
    BestOfRandomRuns,
    Event,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NonPrivate,
    PoissonSampledGaussian,
    ZeroConcentrated,
    check_adjacency,
    compose,
    parts,
)

_LEAST = 1e-300  # a chance that underflows is at least this


def of_group(event: Event, size: int, *, adjacency: Adjacency) -> Event:
    """``event`` as it is for ``size`` units together.

    .. versionadded:: 0.3.0

    Args:
        event: Releases, described for one unit.
        size: k, at least 1; 1 is the event itself.
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``size`` is no whole number of at least 1.
        EventError: ``event`` is unknown or unsound under ``adjacency``, or nothing tight is proven of a group.

    Example:
        >>> of_group(Gaussian(noise_multiplier=6.0), 3, adjacency=Adjacency.ZERO_OUT)
        Composed(parts=((Gaussian(noise_multiplier=2.0), 1),))
        >>> sampled = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=2.0)
        >>> ((pair, _),) = of_group(sampled, 2, adjacency=Adjacency.ZERO_OUT).parts
        >>> pair.sensitivities, pair.chances
        ((0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise AccountingError(f"group={size!r} must be a whole number of units, at least 1")
    check_adjacency(event, adjacency)
    if size == 1:
        return event
    return compose((_of_group(part, size, Adjacency(adjacency)), count) for part, count in parts(event))


def _of_group(part: Basic, size: int, adjacency: Adjacency) -> Basic:  # noqa: PLR0911  # one return per kind of event
    match part:
        case Gaussian(noise_multiplier=z) | PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=z):
            return Gaussian(noise_multiplier=z / size)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z) if adjacency is not Adjacency.REPLACE_ONE:
            return MixtureOfGaussians(noise_multiplier=z, **_joined({0.0: 1.0 - q, 1.0: q}, size))
        case MixtureOfGaussians(noise_multiplier=z, sensitivities=lengths, chances=chances):
            return MixtureOfGaussians(noise_multiplier=z, **_joined(dict(zip(lengths, chances, strict=True)), size))
        case Laplace(scale_multiplier=b):
            return Laplace(scale_multiplier=b / size)
        case ZeroConcentrated(xi=xi, rho=rho):
            return ZeroConcentrated(xi=xi * size * sum(1.0 / i for i in range(1, size + 1)), rho=rho * size * size)
        case BestOfRandomRuns(run=run, eta=eta, gamma=gamma):
            return BestOfRandomRuns(run=compose([of_group(run, size, adjacency=adjacency)]), eta=eta, gamma=gamma)
        case NonPrivate():
            return part
    raise EventError(
        f"of {size} units together nothing tight is proven for {part!r} under {adjacency}; price one unit alone"
    )


class _Mixture(TypedDict):
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]


def _joined(one: Mapping[float, float], size: int) -> _Mixture:
    """The law of the sum of ``size`` independent lengths."""
    total = {0.0: 1.0}
    for _ in range(size):
        grown: dict[float, float] = {}
        for before, chance in total.items():
            for length, added in one.items():
                grown[before + length] = grown.get(before + length, 0.0) + chance * added
        total = grown
    lengths = sorted(total)
    return {"sensitivities": tuple(lengths), "chances": tuple(max(total[length], _LEAST) for length in lengths)}
