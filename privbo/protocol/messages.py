"""Messages between servers and cohorts; every algorithm speaks only this.

A *server* is a state machine over public data: ``ask`` yields the next broadcast
together with the shape and the bound of the answers it wants, ``tell`` absorbs the
noisy answer. A *cohort* is one or many clients: ``respond`` answers a broadcast with
one vector per client. A deployed client is a cohort of one, a simulation a cohort of
many; one implementation serves both.

The two never meet. Between them stands the release mechanism (``privbo.door``),
the only place where clients' vectors become a public number. A server therefore never
holds a client's vector, and nothing in this module is private except what a cohort
returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from accountant.events import Adjacency, Event, of_group, repeat
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.space import Space

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]
# Means of ``counts[i]`` rewards of ``clients[i]`` at ``units[i]``, ``(n,)``; NaN where all failed.
PullObjective: TypeAlias = Callable[[IntArray, FloatArray, IntArray], FloatArray]
# Whose data a release hides: everything of one client, one record of its data, or the outcome of one evaluation.
UnitName: TypeAlias = Literal["client", "record", "reward"]


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The public message that every client is shown in one round.

    Attributes:
        round: Zero-based position in the run; a client that is shown the same round
            twice answers with the same vector.
        arrays: Named public arrays, such as ``{"vectors": (n_regions, n_features)}``.
    """

    round: int
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The sum a server wants: for every block b, sum over n of weights[b, n] * vector_n.

    All blocks of one request are one release (one concatenated vector) and are charged
    once.

    Attributes:
        dim: Length of the vector every client answers with.
        clipping_norm: S, the bound on the joint vector of ``n_blocks`` copies; every
            client's vector is clipped to ``S / sqrt(n_blocks)``.
        weights: Public, finite, non-negative weights, shape ``(n_blocks, n_clients)``.
            They are constants of the run: leaving a client out changes no weight.
        unit: The unit of privacy.
        unit_bound: None where that is one client. Else a bound on the L2 distance between the vectors a client
            sends when one of its rewards, or of its records, is another one. No reward enters two requests of a run;
            a record enters every one.
        group_size: Most of these that are replaced together, at whichever clients: the records of one person.
        noise_scale: This release's noise multiplier over the run's; public. A run whose scales are
            ``1 / sqrt(s)`` with shares s that sum to one costs what one release at the run's multiplier costs.
        training: Event of the models whose scores clients send, charged with this release; None where no model
            was trained on the units under differential privacy.
    """

    dim: int
    clipping_norm: float
    weights: FloatArray
    unit: UnitName = "client"
    unit_bound: float | None = None
    group_size: int = 1
    noise_scale: float = 1.0
    training: Event | None = None

    @property
    def n_blocks(self) -> int:
        """Number of weighted sums that are released together."""
        return int(self.weights.shape[0])

    @property
    def n_clients(self) -> int:
        """Number of clients the weights speak of."""
        return int(self.weights.shape[1])


@dataclass(frozen=True, kw_only=True)
class Release:
    """A public number: what came through the door, charged in the ledger.

    Attributes:
        round: The round it answers.
        values: Noisy weighted sums divided by the sample rate, ``(n_blocks, dim)``.
        noise_stddev: Standard deviation of the Gaussian noise in every entry of
            ``values``; 0 for a non-private release.
        sequence: Position of its charge in the ledger.
        head: The ledger's chain hash after that charge.
    """

    round: int
    values: FloatArray
    noise_stddev: float
    sequence: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where the ledger stands while a round is asked: last row, its digest, and that of the row with the run's plan."""

    plan: str
    sequence: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One round: what is broadcast and what is wanted back.

    ``request=None`` is a round of local work: clients act on the broadcast, nothing is sent,
    nothing is charged, and the server is told ``None``. ``standing`` is the loop's to fill in.
    """

    broadcast: Broadcast
    request: Request | None
    standing: Standing | None = None


@runtime_checkable
class Server(Protocol):
    """The public side of an algorithm. Deterministic: replaying the same releases gives the same state."""

    def plan(self) -> Iterator[Request]:
        """Every request this server can make, in order, as fixed before the run.

        Weights, bounds and count are public; a server may stop earlier, never later, and
        never ask for anything that costs more than its place in the plan.
        """

    def ask(self) -> Ask | None:
        """The current round; the same answer until ``tell`` is called; None when the run is over."""

    def tell(self, release: Release | None) -> None:
        """Absorb the answer to the current round and move to the next."""


@runtime_checkable
class Requesting(Protocol):
    """A server that tells what a broadcast asks for, so that no client has to believe the machine that sent it."""

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request that goes with a broadcast of this run; None where nothing is sent.

        It depends on the broadcast and public settings alone, not on what this server was told.

        Raises:
            ConfigurationError: If no broadcast of this run looks like it.
        """


@runtime_checkable
class Announcing(Protocol):
    """Public side that announces what another machine's arithmetic could find otherwise; its run keeps it.

    Attributes:
        announced: By name; what stands there when the run is resumed or read is not computed again.
    """

    announced: dict[str, FloatArray]


def request_of(server: Server, broadcast: Broadcast, *, released: bool) -> Request | None:
    """Give the request that a broadcast stands for, by this process's own copy of the server.

    Args:
        server: The public side, told nothing.
        broadcast: What clients were shown.
        released: Whether the asking machine says that the round ends with a release. A server without
            ``request_for`` can't tell; then all requests of its plan must be equal.

    Raises:
        ConfigurationError: If the server can't tell.
    """
    if isinstance(server, Requesting):
        return server.request_for(broadcast)
    if not released:
        return None
    planned = server.plan()
    first = next(planned, None)
    if first is None or not all(same_request(first, other) for other in planned):
        raise ConfigurationError(
            f"{type(server).__name__} has no request_for(broadcast) and does not plan equal requests: parties on other "
            "machines can't tell what a round asks for; give it one"
        )
    return first


def same_request(first: Request, second: Request) -> bool:
    """Tell whether two requests ask for the same sum.

    Example:
        >>> one = Request(dim=2, clipping_norm=1.0, weights=np.ones((1, 3)))
        >>> same_request(one, replace(one, clipping_norm=2.0))
        False
    """
    facts = ("dim", "clipping_norm", "unit", "unit_bound", "group_size", "noise_scale", "training")
    same = all(getattr(first, name) == getattr(second, name) for name in facts)
    return same and np.array_equal(first.weights, second.weights)


@runtime_checkable
class Cohort(Protocol):
    """The private side of an algorithm: one or many clients."""

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients in this cohort, shape ``(n,)``."""

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act on a broadcast and answer with one vector per client, ``(n, dim)``.

        A row that is not finite is an absence: it contributes nothing. A round that was
        answered before gets the same answer again, without new evaluations. In a round
        of local work the answer has ``dim = 0`` or is ignored.
        """

    def snapshot(self) -> Arrays:
        """Everything needed to go on in another process (private; no object arrays)."""

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``."""

    def history(self) -> ClientHistory:
        """PRIVATE: give every evaluation so far."""


@dataclass(frozen=True, kw_only=True)
class ClientHistory:
    """Private: every evaluation of a cohort.

    Attributes:
        units: Points in the unit cube, ``(n, n_evaluations, n_dims)``.
        values: Observed objective values (larger is better), ``(n, n_evaluations)``;
            NaN where the objective failed or no evaluation was made.
        rounds: The round of each evaluation, ``(n_evaluations,)``; -1 for initial points.
        recommended: The point each client would use now, ``(n, n_dims)``.
        calls: Evaluations behind each value, failed ones too, ``(n, n_evaluations)``; one for every finite point
            unless it is given.
    """

    units: FloatArray
    values: FloatArray
    rounds: IntArray
    recommended: FloatArray
    calls: IntArray | None = None

    def __post_init__(self) -> None:
        if self.calls is None:
            object.__setattr__(self, "calls", np.isfinite(self.units).all(axis=2).astype(np.int64))

    @property
    def evaluations(self) -> IntArray:
        """Number of evaluations that every client made, failed ones too, ``(n,)``."""
        return np.asarray(np.sum(np.asarray(self.calls), axis=1), dtype=np.int64)


def best_unit(units: FloatArray, values: FloatArray, calls: IntArray | None = None) -> FloatArray:
    """PRIVATE: give the point of one client whose values have the largest mean, the first among equals, ``(n_dims,)``.

    The largest of single values at points that were evaluated again is a lucky one.

    .. versionadded:: 0.3.0

    Args:
        units: Its points, ``(n_evaluations, n_dims)``.
        values: There, ``(n_evaluations,)``, at least one of them finite.
        calls: Evaluations behind each value, its weight; one each unless given.

    Example:
        >>> best_unit(np.array([[0.2], [0.2], [0.8]]), np.array([1.0, 0.0, 0.9]))
        array([0.8])
    """
    known = np.isfinite(values)
    weights = np.maximum(known if calls is None else calls, 1)[known]
    units, values = units[known], values[known]
    _, first, at = np.unique(units, axis=0, return_index=True, return_inverse=True)
    at, start = at.ravel(), values[first]
    mean = start + np.bincount(at, weights * (values - start[at])) / np.bincount(at, weights)  # exact of equal values
    return np.asarray(units[mean[at].argmax()])


class Evaluate(Protocol):
    """The clients' objectives, batched: one point per client."""

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Objective of ``clients[i]`` at ``units[i]``; ``(n,)``, NaN where it failed."""

    @property
    def pull(self) -> PullObjective | None:
        """Means of many rewards at once, which simulations may offer; None where every pull is an evaluation."""

    def earlier(self, client: int) -> Sequence[tuple[FloatArray, float]]:
        """PRIVATE: give points ``(n_dims,)`` that a client evaluated before the run, and their values."""

    def chosen(self, clients: IntArray, units: FloatArray, place: int) -> FloatArray:
        """PRIVATE: give the points that are evaluated ``(n, n_dims)``: what clients enqueued, else what was chosen.

        ``place`` counts the queries of the run before this one.
        """

    def note(self, client: int, reason: str) -> None:
        """PRIVATE: tell a client's own side why something of it was changed or left out."""


@dataclass(frozen=True)
class PlainEvaluate:
    """A function of clients and units as ``Evaluate``, without means of many rewards at once."""

    function: Callable[[IntArray, FloatArray], FloatArray]
    pull: PullObjective | None = None

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Objective of ``clients[i]`` at ``units[i]``; ``(n,)``, NaN where it failed."""
        return self.function(clients, units)

    def earlier(self, client: int) -> Sequence[tuple[FloatArray, float]]:  # noqa: ARG002 (the protocol's)
        """Give none."""
        return ()

    def chosen(self, clients: IntArray, units: FloatArray, place: int) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Give what was chosen."""
        return units

    def note(self, client: int, reason: str) -> None:
        """Keep nothing: a plain function has no private side."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """Public facts about the records that sites hold, and about the scores that an evaluation gives them.

    Proof: docs/proofs/one-record.md.

    Attributes:
        counts: Number of records of every site, ``(n_clients,)``.
        low, high: Bounds of a record's score.
        per_person: Most records of one person, at all sites together.
        training: Event of the training in one evaluation, for one record replaced; None where no model is trained on
            the records.
    """

    counts: tuple[int, ...]
    low: float
    high: float
    per_person: int = 1
    training: Event | None = None

    @property
    def middle(self) -> float:
        """Middle of the range, which is subtracted from every score."""
        return 0.5 * (self.low + self.high)

    def trained(self, n_evaluations: int) -> Event | None:
        """Give what one person's records are charged for the models of so many evaluations of every site.

        Raises:
            EventError: If a person has several records, and no bound is proven for their training together.
        """
        if self.training is None:
            return None
        return repeat(of_group(self.training, self.per_person, adjacency=Adjacency.REPLACE_ONE), n_evaluations)

    def request(self, dim: int) -> Request:
        """Ask every site for its records' centred scores at ``dim`` points, summed, in a block of its own.

        Another score of one record moves ``dim`` sums by at most the range's width each, however many records a site
        has, and no other site's sums. Rounding of sums in floating point adds four units in the last place of the
        largest one at most.
        """
        n_sites, most = len(self.counts), max(self.counts)
        rounding = 8 * most * 2.0**-53 * max(abs(self.low), abs(self.high))
        return Request(
            dim=dim,
            clipping_norm=math.sqrt(n_sites * dim) * (0.5 * most * (self.high - self.low) + rounding),
            weights=np.eye(n_sites),
            unit="record",
            unit_bound=math.sqrt(dim) * (self.high - self.low + rounding),
            group_size=self.per_person,
            training=self.trained(dim),
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Public facts that both sides of an algorithm are told before the run.

    Attributes:
        space: The search space.
        n_clients: N, the number of registered clients, fixed for the run.
        rounds: Length of the run.
        public_seed: Seed of everything the sides must agree on (features, assignment).
        device: Torch device for batched work.
        unit: The unit of privacy. An algorithm that can state how far one reward, or one record, moves a
            release does so in its requests when this is ``"reward"``, or ``"record"``.
        records: What is known of the sites' records; None where the problem does not say.
        is_exact: Whether releases are exact sums: without privacy nothing is clipped and nothing added.
        sample_rate: q, with which a client takes part in a release.
    """

    space: Space
    n_clients: int
    rounds: int
    public_seed: int
    device: str = "cpu"
    unit: UnitName = "client"
    records: Records | None = None
    is_exact: bool = False
    sample_rate: float = 1.0

    @property
    def trains(self) -> bool:
        """Whether every evaluation trains a model whose cost a release has to bear."""
        return self.records is not None and self.records.training is not None

    def at_most(self, rounds: int) -> Setting:
        """Give the facts of a run of at most so many rounds."""
        return replace(self, rounds=min(self.rounds, rounds))


class Algorithm(Protocol):
    """A frozen description from which both sides are built.

    Two more members are ``True`` or ``False``; the latter where an algorithm leaves them out.

    - ``answers_together``: no client's data can make the cohort raise, so one cohort may answer for all clients.
      It speaks of the ``cohort`` of the class that has it: a subclass with a cohort of its own says it anew.
    - ``takes_points``: clients learn from points that they bring along, and evaluate those that are enqueued.

    A method ``calls_per_client(setting)``, where there is one, gives the most calls of the objective by one client,
    from public numbers; plans print it.
    """

    @property
    def caveat(self) -> str | None:
        """One sentence for reports on what these settings give up, such as a heuristic form; None if nothing."""

    @property
    def is_certified(self) -> bool:
        """Whether a promise about the optimum rests on clipping norms that are fixed before the run."""

    def server(self, setting: Setting) -> Server:
        """The public side."""

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """The private side for ``clients``; ``seed`` feeds the clients' own randomness.

        A client's randomness depends on ``seed`` and its own number only, so that a
        cohort of one behaves as the same client does inside a large cohort.
        """

    def local(self) -> Algorithm:
        """The same clients with nothing shared: the local-only control."""


def answers_together(algorithm: Algorithm) -> bool:
    """Tell whether one cohort may answer for all clients: by the class that makes the cohort, or one derived from it.

    Example:
        >>> import privbo as pb
        >>> answers_together(pb.FedPNE())
        True
    """
    for kind in type(algorithm).__mro__:
        if "answers_together" in vars(kind):
            return bool(getattr(algorithm, "answers_together"))  # noqa: B009 (no member that every algorithm has)
        if "cohort" in vars(kind):
            break
    return False


def takes_points(algorithm: Algorithm) -> bool:
    """Tell whether clients learn from points that they bring along, and evaluate others than they chose.

    Example:
        >>> import privbo as pb
        >>> takes_points(pb.SharedPrior()), takes_points(pb.FedPNE())
        (True, False)
    """
    return bool(getattr(algorithm, "takes_points", False))
