"""A ledger that several runs on the same people charge: its bound, and the rule that makes the bound hold."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from accountant import gaussian_dp
from accountant.envelope import envelope
from accountant.events import Adjacency, Composed, Event, compose, is_non_private, repeat
from accountant.filters import fixed_order_filter
from accountant.ledger import Budget
from accountant.ledger.address import is_postgres, place_of, stands
from accountant.ledger.tables import Place
from accountant.tight import numerical
from privbo.door.sampling import Sampling, require_sampling, sample_of
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.settings import Count, Positive, Probability, Sequence, settings

SharedRule: TypeAlias = Literal["automatic", "gaussian", "renyi", "envelope"]


def _text(path: object) -> object:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


@settings(table="ledger.releases")
class DeclaredReleases:
    """Releases that runs on a shared ledger will make, declared before the first of them; public.

    .. versionadded:: 0.3.0

    Attributes:
        count: Number of them; with ``"random-allocation"`` all that one run makes, which are one slot. Several such
            runs are declared one by one.
        noise_multiplier: z, noise standard deviation over L2 sensitivity.
        sample_rate: q, the probability with which a client takes part in one.
        sampling: As in ``Privacy``.
        max_cohort: As in ``Privacy``.
        participations: As in ``Privacy``.

    Raises:
        ConfigurationError: If a number is out of range, missing, or another sampling's.

    Example:
        >>> DeclaredReleases(count=100, sample_rate=0.1, noise_multiplier=1.2).event(n_clients=40)
        Composed(parts=((PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.2), 100),))
    """

    count: Count
    noise_multiplier: Positive
    sample_rate: Probability = 1.0
    sampling: Sampling = "poisson"
    max_cohort: Count | None = None
    participations: Count | None = None

    def __post_init__(self) -> None:
        require_sampling(self.sampling, self.sample_rate, self.max_cohort, self.participations)

    def event(self, n_clients: int) -> Composed:
        """Give all of them as one event."""
        sample = sample_of(self, n_clients, self.count)
        return repeat(sample.event(self.noise_multiplier), 1 if sample.is_allocation else self.count)


@settings(table="ledger")
class SharedLedger:
    """A population's ledger that several runs on the same people charge.

    Attributes:
        path: The ledger's file, made by the first run that names it, or ``postgresql://ROLE@HOST/DATABASE?commits=FILE``
            (``privbo ledger make``). A relative path of a configuration file starts at that file's folder; in Python,
            and in a federation's ``run.toml``, at the working directory. A kept run finds it from anywhere.
        population: Name of the people; runs on other people need another ledger.
        epsilon: Bound on all runs together, or None; fixed when the ledger is made.
        delta: Of that bound.
        rule: What makes the bound hold, fixed when the ledger is made. Each holds whatever later
            runs choose after seeing earlier ones:

            - ``"gaussian"``: exact where all clients take part in every release; a sampled release is
              charged as if all did;
            - ``"envelope"``: the declared ``releases`` are reserved and priced tightly together. A
              release takes one whose rate is no smaller and whose noise is no larger than its own
              (``accountant.envelope``); any run may take those that are left, and nothing else is admitted;
            - ``"renyi"``: admits everything and costs more; its order suits the declared
              ``releases``, or else the plan of the run that makes the ledger;
            - ``"automatic"``: ``"gaussian"`` where the declared ``releases``, or else those of the run that
              makes the ledger, are without sampling; ``"envelope"`` where declared ones together fit the
              bound; else ``"renyi"``. Later runs take the ledger as it is.
        releases: Releases that all runs together will make; the slots of an ``"envelope"``.
        folder: At which a relative path starts; None for any other.

            .. versionadded:: 0.3.0

    Raises:
        ConfigurationError: If only one of epsilon and delta is given, or the rule lacks what it needs.

    Example:
        >>> SharedLedger(path="ward-3.sqlite", population="ward 3", epsilon=4.0, delta=1e-5).population
        'ward 3'
    """

    path: Annotated[str, Field(min_length=1), BeforeValidator(_text)]
    population: Annotated[str, Field(min_length=1)]
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    rule: SharedRule = "automatic"
    releases: Sequence[DeclaredReleases] = ()
    folder: Annotated[str | None, Field(exclude=True)] = None

    def __post_init__(self) -> None:
        starts = not (is_postgres(self.path) or Path(self.path).is_absolute())
        object.__setattr__(self, "folder", str(Path(self.folder or "").absolute()) if starts else None)
        if (self.epsilon is None) != (self.delta is None):
            raise ConfigurationError(
                f"ledger: epsilon={self.epsilon!r}, delta={self.delta!r}; give both (a bound) or neither"
            )
        if self.epsilon is None and (self.rule != "automatic" or self.releases):
            raise ConfigurationError(
                f"ledger.rule={self.rule!r}, {len(self.releases)} releases: without a bound nothing is held to a rule; "
                "give epsilon and delta"
            )
        if (self.rule == "envelope" and not self.releases) or (self.rule == "gaussian" and self.releases):
            needs = "reserves what is declared; give releases" if self.rule == "envelope" else "needs none; drop them"
            raise ConfigurationError(f"ledger.rule={self.rule!r}, {len(self.releases)} releases: this rule {needs}")

    @property
    def place(self) -> Place:
        """Where it is kept.

        Raises:
            LedgerError: If the address of a database lacks something, or holds a secret.
        """
        place = place_of(self.path)
        return Path(self.folder or "", place) if isinstance(place, Path) else place

    def beside(self, file: Path) -> SharedLedger:
        """Let a relative path start at the folder of the file that names it.

        Raises:
            ConfigurationError: If no ledger is there, and one at the working directory.
        """
        moved = replace(self, folder=str(file.parent))
        if stands(self.place) and not stands(moved.place):
            raise ConfigurationError(
                f"ledger.path={self.path!r} starts at the folder of {file}, where no ledger is, and "
                f"{self.place} is one; write its whole path, or move it"
            )
        return moved

    def budget(self, plan: Event, *, n_clients: int, adjacency: Adjacency, sampled: bool = False) -> Budget | None:
        """Give the budget of a ledger that is made by a run of this plan, empty or not; None without a bound.

        Raises:
            AccountingError: If the bound is too small for any order.
            EventError: If a declared release is unsound under the adjacency.
        """
        if self.epsilon is None or self.delta is None:
            return None
        declared = self.declared(n_clients)
        expected = declared if declared.parts else compose([plan])
        rule = self.rule
        if rule == "automatic":
            exact = gaussian_dp.is_exact(expected) if expected.parts else not sampled
            fits = declared.parts and numerical.epsilon(declared, self.delta, adjacency=adjacency) <= self.epsilon
            rule = "gaussian" if exact else "envelope" if fits else "renyi"
        if rule == "envelope":
            slots = envelope(declared, adjacency=adjacency).slots
            return Budget(epsilon=self.epsilon, delta=self.delta, rule=rule, slots=slots)
        if rule == "gaussian" or not expected.parts or is_non_private(expected):
            return Budget(epsilon=self.epsilon, delta=self.delta, rule=rule)
        best = fixed_order_filter(epsilon=self.epsilon, delta=self.delta, plan=expected, adjacency=adjacency)
        return Budget(epsilon=self.epsilon, delta=self.delta, rule=rule, order=best.order)

    def declared(self, n_clients: int) -> Composed:
        """Give the declared releases as one event."""
        return compose(releases.event(n_clients) for releases in self.releases)

    def kept(self, found: Budget | None, wanted: Budget | None) -> Budget | None:
        """Give the budget of a ledger that exists, where nothing said here speaks against it; else the wanted one."""
        if found is None or wanted is None:
            return wanted
        same_bound = (found.epsilon, found.delta) == (wanted.epsilon, wanted.delta)
        ours, theirs = ((one.rule, one.order, compose(one.slots)) for one in (wanted, found))
        stands = self.rule in ("automatic", found.rule) and (not self.releases or ours == theirs)
        return found if same_bound and stands else wanted
