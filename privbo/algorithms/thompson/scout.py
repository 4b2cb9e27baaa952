"""A scout: one small release that estimates how alike the clients' surfaces are, before a run is charged.

Every client evaluates the same public points and answers with its values there, centred and divided by their norm: the
inner product of two answers is the correlation of two surfaces over those points. The public side and the
estimate are here, the private side is in ``clients``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from privbo.algorithms.thompson.exploration import first_points
from privbo.algorithms.thompson.servers import RoundServer
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Arrays, Cohort, Evaluate, IntArray, Release, Request, Setting
from privbo.protocol.settings import settings


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Estimated likeness of clients' surfaces; public.

    Attributes:
        correlation: Mean correlation of two clients' values at the scout's points. Without bias, so it may
            lie outside of [-1, 1] where the noise is large. Each of k clients without an answer, or with equal values,
            counts as uncorrelated, less a bias of k / (N (N - 1)).
        standard_error: Of the noise alone, not of the choice of points.
    """

    correlation: float
    standard_error: float

    @property
    def text(self) -> str:
        """Both numbers in words."""
        return f"{self.correlation:.2f} +- {self.standard_error:.2f} (standard error of the noise)"


@settings(table="algorithm")
class Scout:
    """Private estimate of the correlation between clients' surfaces, by one release.

    | In a round | what leaves a client | guarantee |
    |---|---|---|
    | 0, the only one | one vector of norm 1; only the noisy mean becomes public | (epsilon, delta) of the run's plan |
    | of ``local()`` | nothing | nothing is released or charged |

    Attributes:
        evaluations: Of every client, at the same public points. More tell more about the surfaces, and add noise: the
            release has as many numbers.
        is_shared: Whether anything is released.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> def score(client, params):
        ...     return -((params["x"] - client / 400) ** 2)
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=200)
        >>> privacy = pb.Privacy(epsilon=1.0, noise="simulation")
        >>> record = pb.run(problem, Scout(evaluations=8), privacy=privacy, rounds=1, seed=0)
        >>> found = likeness(record.releases[0], n_clients=200)
        >>> 0.4 < found.correlation < 1.0, found.standard_error < 0.1
        (True, True)
    """

    answers_together: ClassVar[bool] = True
    caveat: ClassVar[str | None] = None  # every form of it does what its settings say
    is_certified: ClassVar[bool] = False  # no statement about the optimum rests on the clipping norm
    type: Literal["scout"] = field(default="scout", repr=False)
    evaluations: Annotated[int, Field(ge=3, le=256)] = 16
    is_shared: bool = True

    def calls_per_client(self, setting: Setting) -> int:  # noqa: ARG002  # the same for every run
        """Give the calls of the objective by one client."""
        return self.evaluations

    def local(self) -> Scout:
        """Give the same evaluations with nothing shared."""
        return dataclasses.replace(self, is_shared=False)

    def server(self, setting: Setting) -> ScoutServer:
        """Make the public side."""
        return ScoutServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:  # noqa: ARG002 (the protocol's)
        """Make the private side for ``clients``, which draws nothing."""
        from privbo.algorithms.thompson.clients import ScoutClients  # loads torch, which the public side does not

        return ScoutClients(setting, clients=clients, evaluate=evaluate)


class ScoutServer(RoundServer):
    """One question, to every client."""

    def __init__(self, algorithm: Scout, setting: Setting) -> None:
        super().__init__(0)
        self._points = first_points(setting, np.array([0]), algorithm.evaluations)[0]
        n = setting.n_clients
        mean = Request(dim=len(self._points), clipping_norm=1.0, weights=np.full((1, n), 1.0 / n))
        self._planned = mean if algorithm.is_shared else None

    def _request(self, round_: int) -> Request | None:
        return None if round_ else self._planned

    def _arrays(self) -> Arrays:
        return {"points": self._points}


def likeness(release: Release, *, n_clients: int) -> Likeness:
    """Estimate the mean correlation of two clients from the release of all clients' answers; public arithmetic.

    The sum s of N vectors of norm 1 and of noise of standard deviation sigma in M coordinates has
    E |s|^2 = N + N (N - 1) r + M sigma^2, where r is the mean inner product of two of them; its variance is
    4 sigma^2 (|s|^2 - M sigma^2) + 2 M sigma^4, with |s|^2 for its expectation, as ``standard_error`` has it.
    All clients take part, so noise alone is random.

    Raises:
        ConfigurationError: If there are fewer than two clients.
    """
    if n_clients < 2:
        raise ConfigurationError(f"n_clients={n_clients}: likeness is between clients; there must be at least 2")
    pairs, total = n_clients * (n_clients - 1), n_clients * np.asarray(release.values, dtype=np.float64)[0]
    squares = float(total @ total) - len(total) * (n_clients * release.noise_stddev) ** 2
    correlation = (squares - n_clients) / pairs
    error = standard_error(correlation, n_clients=n_clients, n_points=len(total), noise_stddev=release.noise_stddev)
    return Likeness(correlation=correlation, standard_error=error)


def standard_error(correlation: float, *, n_clients: int, n_points: int, noise_stddev: float) -> float:
    """Standard error of an estimated likeness, of the noise alone, from public numbers; known before the release.

    .. versionadded:: 0.3.0

    Args:
        correlation: Mean correlation of two clients' surfaces; one below 0 counts as 0.
        n_clients: N, at least 2.
        n_points: Evaluations of every client, M.
        noise_stddev: Of the noise in every entry of the released mean.

    Example:
        >>> [round(standard_error(r, n_clients=40, n_points=16, noise_stddev=0.1), 3) for r in (0.0, 1.0)]
        [0.066, 0.213]
    """
    pairs, variance = n_clients * (n_clients - 1), (n_clients * noise_stddev) ** 2
    squares = n_clients + pairs * max(correlation, 0.0)
    return math.sqrt(4.0 * variance * squares + 2.0 * n_points * variance**2) / pairs
