"""Privacy a user may ask for: a target epsilon or a noise multiplier.

``privbo.plans.plan`` prices it for a given plan.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import field
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field

from accountant.events import Adjacency
from accountant.verify.hidden import Hidden, hidden_unit
from accountant.wording import upper_text
from privbo.door.adaptive import AdaptiveClipping
from privbo.door.mechanism import Mechanism, mechanism_for, require_unit
from privbo.door.sampling import Sampling, require_sampling, sample_of
from privbo.door.sums import blocks_of
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request, UnitName
from privbo.protocol.settings import Count, Positive, Probability, settings

# Who looks: the server with all guardians but one, one guardian, or whoever reads what is broadcast.
Against: TypeAlias = Literal["coalition", "guardian", "outsiders"]
AGAINST: tuple[Against, ...] = get_args(Against)

# Who may see a client's vector.
Trust: TypeAlias = Literal["server", "guardians", "sites"]


def unknown_noises(against: Against, n_guardians: int) -> int:
    """Give the number of noises that an observer does not know.

    Example:
        >>> [unknown_noises(who, 3) for who in ("coalition", "guardian", "outsiders")]
        [1, 2, 3]
    """
    return {"coalition": 1, "guardian": max(1, n_guardians - 1), "outsiders": n_guardians}[against]


# Which records are hidden: all that a site holds, or only those that scores are made of, not those of training.
Protects: TypeAlias = Literal["records", "validation records"]


# Where a run's noise comes from; "none" for a run that is not private.
NoiseSourceName: TypeAlias = Literal["secure", "exact", "simulation", "none"]


SITES_ARE_SEEN = "a site's own scores can be read up to the noise: sites are not hidden"


def adjacency_of(unit: UnitName) -> Adjacency:
    """Give the adjacency of a unit: a client leaves by sending zero, a reward or a record is replaced by another."""
    return Adjacency.ZERO_OUT if unit == "client" else Adjacency.REPLACE_ONE


def paper_delta(n_clients: int) -> float:
    """Give N^-1.1, the delta of the federated Bayesian optimisation papers.

    Example:
        >>> round(paper_delta(200), 5)
        0.00294
    """
    return min(0.5, math.pow(n_clients, -1.1))


def default_delta(n_clients: int) -> float:
    """Give min(1e-5, 1/(10 N)), well below the 1/N at which publishing one random client whole passes.

    Example:
        >>> default_delta(40), default_delta(10_000)
        (1e-05, 1e-05)
    """
    return min(1e-5, 0.1 / n_clients)


def delta_warning(delta: float, n: int) -> str:
    """Warn of a delta that publishing one of n at random satisfies; empty of a smaller one.

    Example:
        >>> delta_warning(0.0250499, 40)
        'delta = 0.0251 is above 1/N = 0.025, which publishing one of N at random satisfies; set it to 1e-05 or less'
    """
    if delta <= 1 / n:
        return ""
    words = f"delta = {upper_text(delta, 3)} is above 1/N = {1 / n:.3g}, which publishing one of N at random satisfies"
    return f"{words}; set it to {default_delta(n):.2g} or less"


def safe_delta(delta: float, n_clients: int) -> float:
    """Give the delta that headlines name: the one asked for, and at most ``default_delta``.

    Example:
        >>> safe_delta(paper_delta(40), 40), safe_delta(1e-7, 40)
        (1e-05, 1e-07)
    """
    return min(delta, default_delta(n_clients))


@settings(table="privacy")
class Privacy:
    """The privacy of a run: a target epsilon, or a noise multiplier.

    Attributes:
        epsilon: Target; the noise is calibrated so that the whole plan costs no more, and at most .1 % less: a run
            that asks for 2 may print 1.9993, which is what it costs.
        noise_multiplier: z, noise standard deviation over L2 sensitivity, instead of a target.
        sample_rate: q, the probability with which a client takes part in a release. At 1
            (the default) a fixed number of rounds needs the least noise, no secrecy of
            the sample, and the price is exact.
        delta: The probability that is added to epsilon's bound; None is ``min(1e-5, 1/(10 N))``, ``"paper"`` is N^-1.1.
        calibration: ``"tight"`` scales noise to the true sensitivity of the weights,
            ``"paper"`` draws the paper's noise (scaled to phi_max S) and charges the true
            multiplier.
        sampling: How the participants of a release are drawn, in secret. ``"poisson"``: every client by its own coin;
            ``"fixed-size"``: a subset of ``round(q N)`` clients, with its own larger sensitivity;
            ``"truncated-poisson"``: coins, and of more than ``max_cohort`` clients a random ``max_cohort``;
            ``"random-allocation"``: every client in exactly ``participations`` of the run's releases, at random times
            drawn before the first. The last has one price for the whole run, charged however early it ends, and needs
            all releases at one noise multiplier.
        max_cohort: The most clients of one release, with ``"truncated-poisson"``.
        participations: Releases that every client is in, with ``"random-allocation"``, in place of the sample rate.
        adaptive_clipping: Move the clipping norm to a noisy quantile; None keeps what is asked.
        budget: Epsilon at ``delta`` that the ledger refuses to pass, with a noise multiplier
            (a target epsilon is its own budget). A plan that costs more is refused before
            any data is touched.
        noise: ``"secure"`` is cryptographic noise; ``"exact"`` OpenDP's discrete Gaussian (the
            extra ``exact``, slower); ``"simulation"`` is seeded noise, for
            experiments only: no guarantee, and every report says so.
        channel: ``"open"``: who sends may be seen, so every client sends in every round and the
            sample stays secret; ``"anonymous"``: the channel hides who sends, so clients outside
            a round's sample send nothing (communication falls by the sample rate). A
            transport that can't hide it refuses. Plans and reports also print what a run costs against
            observers who see which clients are asked or send: sampling hides nothing from them.
        unit: Whose data is hidden. ``"client"``: all of one client. ``"reward"``: the
            outcome of one evaluation, for algorithms that can bound what it does; far less
            noise, and a client's behaviour as a whole stays unprotected. A run then costs
            what its most expensive release costs, because no reward enters two. ``"record"``: one record of one
            site, such as a patient, for few sites with many records; the problem states ``n_records``. A site's own
            scores can be read up to the noise.
        protects: With ``unit="record"``, to be said by the user: ``"records"`` where the score of a record depends
            on that record alone and on nothing else a site holds; ``"validation records"`` where models were trained
            on other records of the same site, which stay unprotected.
        records_per_person: Most records of one person at all sites together, with ``unit="record"``: all of them are
            hidden, at so many times the noise.
        trust: Who may see a client's vector. ``"server"``: the aggregating server; ``"guardians"``: no party, as
            long as one of the guardians is honest. Each holds a share, adds noise of its own and keeps a ledger of its
            own (docs/guardians.md). With guardians all clients take part, or each client draws its own coin
            (``sample_rate`` below 1). ``"sites"``: no party; with ``unit="record"`` every site adds noise to its own
            sums before they leave it.
        guardians: Number of guardians, 2 by default; with ``trust="guardians"``.
        against: Whom epsilon is stated and noise is calibrated for, with ``trust="guardians"``: ``"coalition"``, the
            server with all guardians but one, who know all noises but one; ``"guardian"``, one guardian, who knows its
            own; ``"outsiders"``, who read what is broadcast. Plans and reports name all three prices.

    Raises:
        ConfigurationError: If not exactly one of epsilon and noise_multiplier is given
            or a value is out of range.

    Example:
        >>> Privacy(epsilon=2.0).resolved_delta(n_clients=40)
        1e-05
        >>> Privacy(epsilon="2")
        Traceback (most recent call last):
        privbo.protocol.errors.ConfigurationError: privacy.epsilon='2': input should be a valid number; correct it
    """

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    sample_rate: Probability = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] | Literal["paper"] | None = None
    calibration: Literal["tight", "paper"] = "tight"
    sampling: Sampling = "poisson"
    max_cohort: Count | None = None
    participations: Count | None = None
    adaptive_clipping: AdaptiveClipping | None = None
    budget: Positive | None = None
    noise: Literal["secure", "exact", "simulation"] = "secure"
    channel: Literal["open", "anonymous"] = "open"
    unit: UnitName = "client"
    protects: Protects | None = None
    records_per_person: Count = 1
    trust: Trust = "server"
    guardians: Annotated[int, Field(ge=2, le=16)] | None = None
    against: Against | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigurationError(
                f"privacy: epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}; "
                "give exactly one of them"
            )
        require_sampling(self.sampling, self.sample_rate, self.max_cohort, self.participations)
        if self.budget is not None and self.epsilon is not None:
            raise ConfigurationError("privacy: a target epsilon is its own budget; drop budget")
        self._require_unit()
        self._require_trust()

    def _require_unit(self) -> None:
        if (self.protects is None) == (self.unit == "record") or (self.records_per_person != 1 and not self.protects):
            raise ConfigurationError(
                f"privacy: unit={self.unit!r}, protects={self.protects!r}, records_per_person="
                f"{self.records_per_person!r}; with unit='record', and only then, say protects='records' where a "
                "record's score depends on that record alone, or protects='validation records' where models are "
                "trained on other records of the same site, which stay unprotected"
            )
        if self.unit != "client":
            require_unit(self.sample_rate, self.sampling, self.calibration, self.adjacency)
            if self.adaptive_clipping is not None:
                raise ConfigurationError(
                    f"adaptive_clipping counts clients, and one {self.unit} may move a count by a whole client; drop "
                    "it, or set privacy.unit='client'"
                )

    def _require_trust(self) -> None:
        if (self.trust, self.unit) == ("guardians", "record") or (self.trust == "sites" and self.unit != "record"):
            raise ConfigurationError(
                f"privacy: trust={self.trust!r}, unit={self.unit!r}; guardians add up what clients send, and with "
                "unit='record' every site's sums are released apart: set trust='sites' with it, and only with it"
            )
        unguarded = {
            f"sampling={self.sampling!r} needs a party that draws and knows the sample, and with trust='guardians' "
            "there is none; use sampling='poisson', where each client draws its own coin": self.sampling != "poisson",
            "adaptive_clipping moves the bound from round to round by the server's word, and guardians go by the plan "
            "that they hold themselves; drop it, or set privacy.trust='server'": self.adaptive_clipping is not None,
            f"channel={self.channel!r}: with trust='guardians' no party knows who was drawn, so ciphertexts of one "
            "size are sent in every round; use channel='open'": self.channel != "open",
        }
        for why, is_asked in unguarded.items():
            if self.trust == "guardians" and is_asked:
                raise ConfigurationError(why)
        if self.trust != "guardians" and (self.guardians is not None or self.against is not None):
            raise ConfigurationError(
                f"privacy: guardians={self.guardians!r}, against={self.against!r} belong to trust='guardians'; set "
                "it, or leave them out"
            )

    @property
    def n_noises(self) -> int:
        """Independent noises in a release: one, or one of every guardian."""
        return (self.guardians or 2) if self.trust == "guardians" else 1

    @property
    def n_counted(self) -> int:
        """Number of noises that epsilon counts on."""
        return unknown_noises(self.against or "coalition", self.n_noises)

    @property
    def adjacency(self) -> Adjacency:
        """Of every event: a client leaves by sending zero, a reward or a record is replaced by another one."""
        return adjacency_of(self.unit)

    @property
    def hidden(self) -> Hidden:
        """Whom a run hides, and whom it does not, in words."""
        return hidden_unit(self.unit, self.protects, self.records_per_person)

    @property
    def noise_source(self) -> NoiseSourceName:
        """Source of the noise."""
        return self.noise

    def sending_share(self, n_clients: int, n_releases: int) -> float:
        """Give the share of the clients that send in a round on average; which and how many do is secret."""
        if self.channel == "open" or not n_releases:
            return 1.0
        return sample_of(self, n_clients, n_releases).rate

    def resolved_delta(self, n_clients: int) -> float:
        """Give delta as a number for N clients; warns of the papers' delta and above 1/N."""
        if self.delta == "paper":
            delta = paper_delta(n_clients)
            warnings.warn(
                f"delta = N^-1.1 = {upper_text(delta, 3)} follows the papers; publishing one random client whole "
                f"satisfies delta = 1/N = {1 / n_clients:.3g}, so read epsilon at {default_delta(n_clients):.2g} too",
                stacklevel=2,
            )
            return delta
        delta = default_delta(n_clients) if self.delta is None else self.delta
        if words := delta_warning(delta, n_clients):
            warnings.warn(words, stacklevel=2)
        return delta

    def mechanism(
        self, request: Request, noise_multiplier: float | None, *, n_releases: int | None = None
    ) -> Mechanism:
        """Give the mechanism that answers a request with noise of this multiplier.

        Args:
            request: What is asked for.
            noise_multiplier: z of a release of noise scale 1; None is the plain sum.
            n_releases: Number of releases of the plan, for a random allocation; None as long as they are counted.

        Raises:
            ConfigurationError: If the request can't be answered for this unit of privacy.
        """
        if self.trust == "sites":
            blocks_of(request.weights)
        if request.unit != self.unit:
            why, way = "what a single evaluation does to them is not bounded", "set privacy.unit='client'"
            if self.unit == "record":
                why, way = "no bound is proven on how far one record moves what it fits", f"use MultiTask(), or {way}"
            raise ConfigurationError(
                f"privacy.unit={self.unit!r}: this algorithm states its releases for one {request.unit} only, because "
                f"{why}; {way}"
            )
        return mechanism_for(
            request,
            noise_multiplier=None if noise_multiplier is None else noise_multiplier * request.noise_scale,
            sample=lambda n_clients: sample_of(self, n_clients, n_releases),
            adjacency=self.adjacency,
            calibration=self.calibration,
            n_noises=self.n_noises,
            n_counted=self.n_counted,
        )

    def simulated(self) -> Privacy:
        """Give the same privacy with seeded noise: a simulation, no guarantee."""
        return dataclasses.replace(self, noise="simulation")


@settings(table="privacy")
class NoPrivacy:
    """A non-private baseline: the plain sum leaves the clients, epsilon is infinity.

    It answers the questions that ``Privacy`` answers.

    Attributes:
        none: True; ``[privacy] none = true`` in a file.

    Example:
        >>> NoPrivacy().noise_source
        'none'
    """

    none: Literal[True] = field(default=True, repr=False)
    unit: ClassVar[UnitName] = "client"
    hidden: ClassVar[Hidden] = hidden_unit("client")
    protects: ClassVar[None] = None
    records_per_person: ClassVar[int] = 1
    adjacency: ClassVar[Adjacency] = Adjacency.ZERO_OUT
    noise_source: ClassVar[NoiseSourceName] = "none"
    channel: ClassVar[Literal["open"]] = "open"
    adaptive_clipping: ClassVar[None] = None
    noise_multiplier: ClassVar[None] = None
    sampling: ClassVar[None] = None
    sample_rate: ClassVar[None] = None
    participations: ClassVar[None] = None
    epsilon: ClassVar[None] = None
    budget: ClassVar[None] = None
    trust: ClassVar[Literal["server"]] = "server"
    n_noises: ClassVar[int] = 1
    n_counted: ClassVar[int] = 1

    def sending_share(self, n_clients: int, n_releases: int) -> float:  # noqa: ARG002  # as Privacy is asked
        """Give the share of the clients that send in a round: all."""
        return 1.0

    def resolved_delta(self, n_clients: int) -> float:
        """Give the delta that tables name for N clients."""
        return default_delta(n_clients)

    def mechanism(
        self,
        request: Request,
        noise_multiplier: float | None,  # noqa: ARG002  # as Privacy is asked
        *,
        n_releases: int | None = None,  # noqa: ARG002  # as Privacy is asked
    ) -> Mechanism:
        """Give the mechanism that answers a request: the plain sum."""
        return mechanism_for(request, noise_multiplier=None)

    def simulated(self) -> NoPrivacy:
        """Give the same: there is no noise."""
        return self
