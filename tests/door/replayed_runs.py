"""Replay test of a release against its event: same randomness, neighbouring data.

The shipped door (or what a test hands in) is run again and again with scripted randomness: chosen
participants and chosen noise. Nothing is statistical, so a finding is a fact. Compared are

- what is drawn: kinds, shapes, scales; it may not depend on data or on who takes part;
- what noise does: every released entry has its own, of one standard deviation;
- what one unit (a client, or one reward of a client) does: the largest movement of the
  released values, which times the event's noise multiplier may not pass the standard deviation;
- what the event says: its sampler and rate must be the ones that were drawn with.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from accountant.events import Adjacency, Event, FixedSizeSampledGaussian, Gaussian, PoissonSampledGaussian, Unit
from accountant.ledger import Ledger, LedgerPolicy
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.messages import BoolArray, FloatArray, IntArray, Request
from tests.builders import door

_TOLERANCE = 1e-9
Draw: TypeAlias = tuple[str, tuple[int, ...] | int, float]  # kind, shape or number, parameter
# Mechanism, request, everybody's vectors and noise make the released values and their charge.
Play: TypeAlias = Callable[[PrivateSum, Request, FloatArray, NoiseSource], tuple[FloatArray, Event]]


@dataclass(kw_only=True)
class ScriptedNoise:
    """Randomness that was decided beforehand; notes what it is asked for.

    Attributes:
        participants: Who takes part, ``(n_clients,)``.
        units: Grid units added to the entries, in order and over again.
        drawn: One tuple per call: kind and parameters.
    """

    participants: BoolArray
    units: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    drawn: list[Draw] = field(default_factory=list)
    name: str = "simulation"

    def stream(self, label: str):
        """Itself."""
        return self

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """The scripted units."""
        self.drawn.append(("gaussian", shape, scale))
        return np.resize(self.units, shape)

    def coins(self, shape: tuple[int, ...], rate: float) -> BoolArray:
        """The scripted participants."""
        self.drawn.append(("coins", shape, rate))
        return np.broadcast_to(self.participants, shape).copy()

    def subsets(self, shape: tuple[int, int], size: int) -> BoolArray:
        """The scripted participants."""
        self.drawn.append(("subset", shape[1], size))
        return np.broadcast_to(self.participants, shape).copy()


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Outcome of one case.

    Attributes:
        findings: Contradictions between release and event; empty if there are none.
        sensitivity: Largest movement of the released values by one client.
        noise_stddev: Standard deviation of the noise as found in the released values.
        event: What the release was charged as.
    """

    findings: tuple[str, ...]
    sensitivity: float
    noise_stddev: float
    event: Event


def adversarial_rows(request: Request, client: int, *, rng: np.random.Generator) -> FloatArray:
    """Vectors that make a fault visible: a saturating client among hostile others, ``(n_clients, dim)``."""
    shape = (request.n_clients, request.dim)
    direction = np.zeros(request.dim)
    direction[rng.integers(request.dim)] = rng.choice([-1.0, 1.0])
    long = request.clipping_norm * rng.choice([1.0, 3.0, 1e6])
    others = [
        np.zeros(shape),
        np.broadcast_to(-long * direction, shape),
        np.broadcast_to(long * direction, shape),
        rng.normal(size=shape) * request.clipping_norm,
        np.where(rng.random(shape) < 0.5, np.nan, 1e300),
    ]
    rows = np.array(others[rng.integers(len(others))])
    rows[client] = long * direction
    return rows


def through_the_door(
    mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource
) -> tuple[FloatArray, Event]:
    """One release by the shipped door, from a ledger of its own."""
    policy = LedgerPolicy(
        unit=Unit(request.unit), adjacency=mechanism.adjacency, population="replay", n_clients=request.n_clients
    )
    here = door(Ledger.create(None, policy), noise=noise, mechanism=lambda _: mechanism)
    release, _ = here.close(here.open(0, request), rows)
    (entry,) = here.ledger.entries()
    return release.values, entry.event


class _Run(NamedTuple):
    values: FloatArray
    event: Event
    drawn: list[Draw]


def replay(
    mechanism: Callable[[Request], PrivateSum],
    request: Request,
    rows: FloatArray,
    *,
    client: int,
    seed: int,
    play: Play = through_the_door,
) -> Replay:
    """Release ``rows`` and its neighbours with the same randomness.

    Args:
        mechanism: The mechanism under test, as the run would build it.
        request: The algorithm's request.
        rows: Clients' vectors, ``(n_clients, dim)``; adversarial ones find more.
        client: Who differs between the neighbours.
        seed: Chooses who else takes part.
        play: Makes one release.
    """
    spec, findings = mechanism(request), []

    def run(rows: FloatArray, participants: BoolArray, **units: IntArray) -> _Run:
        noise = ScriptedNoise(participants=participants, **units)
        return _Run(*play(spec, request, rows, noise), noise.drawn)

    def sent(row: FloatArray) -> FloatArray:
        changed = rows.copy()
        changed[client] = row
        return changed

    who, swapped = samples(spec, client, seed)
    base = run(rows, who)
    runs = [run(sent(other), who) for other in vectors(rows[client], spec.adjacency, request.unit_bound)]
    findings += [
        "what is drawn depends on a client's data"
        for each in runs
        if each.drawn != base.drawn or each.event != base.event
    ]
    absent, silent = (run(sent(np.full(rows.shape[1], value)), who) for value in (np.nan, 0.0))
    if absent.drawn != base.drawn or not np.array_equal(absent.values, silent.values):
        findings.append("an absent client is not the same as one that sends zero")
    swaps = [run(rows, other) for other in swapped]
    findings += ["what is drawn depends on who takes part" for each in swaps if each.drawn != base.drawn]
    moved = max(float(np.linalg.norm(each.values - base.values)) for each in runs + swaps)
    scales, size, stddev = [call for call in base.drawn if call[0] == "gaussian"], base.values.size, np.inf
    units = (np.arange(1, size + 1, dtype=np.int64) << 20) * np.where(np.arange(size) % 2, -1, 1)
    for some in (who, np.zeros_like(who)):
        quiet, loud = run(rows, some), run(rows, some, units=units)
        added = (loud.values - quiet.values).ravel()
        if loud.drawn != quiet.drawn or loud.drawn != base.drawn:
            findings.append("what is drawn depends on who takes part, or on the noise itself")
        if len(scales) != 1 or len(np.unique(np.abs(added))) != size or np.any(added == 0):
            findings.append("released entries do not each have noise of their own")
            stddev = 0.0
            continue
        # Rounding of large values hides the last bits of the gain, never more than this.
        stddev = float(np.minimum(stddev, np.abs(added / units).min() * scales[0][2]))
    findings[:0] = _event_findings(base, spec.geometry.n_clients)
    multiplier = float(getattr(base.event, "noise_multiplier", np.inf))
    if not stddev >= multiplier * moved * (1 - _TOLERANCE):
        findings.append(
            f"noise {stddev:.6g} is below the event's multiplier {multiplier:.6g} times the measured "
            f"sensitivity {moved:.6g}"
        )
    return Replay(findings=tuple(findings), sensitivity=moved, noise_stddev=stddev, event=base.event)


def _event_findings(run: _Run, n_clients: int) -> list[str]:
    """Whether the event names the sampler and the rate that were drawn with."""
    samplers = [call for call in run.drawn if call[0] != "gaussian"]
    if len(samplers) != 1:
        return [f"participants were drawn {len(samplers)} times"]
    kind, first, second = samplers[0]
    everyone = (kind == "coins" and second == 1.0) or (kind == "subset" and second == n_clients)
    event = run.event
    if isinstance(event, Gaussian):
        fits = everyone
    elif isinstance(event, PoissonSampledGaussian):
        fits = kind == "coins" and event.sample_rate >= second
    elif isinstance(event, FixedSizeSampledGaussian):
        fits = kind == "subset" and (event.n_clients, event.sample_size) == (first, second)
    else:
        fits = False
    return [] if fits else [f"participants were drawn by {kind} of {second}, charged as {event}"]


def samples(spec: PrivateSum, client: int, seed: int) -> tuple[BoolArray, list[BoolArray]]:
    """Participants with ``client`` among them, and those an adversary compares it with: without.

    Args:
        spec: Says how participants are drawn.
        client: Who takes part in the first sample and in none of the others.
        seed: Chooses who else takes part.
    """
    rng = np.random.default_rng(seed)
    n = spec.geometry.n_clients
    everybody = np.arange(n)
    chosen = np.zeros(n, dtype=bool)
    if spec.sample.everyone:
        return ~chosen, []
    if spec.sample.sampling == "fixed-size":
        rest = rng.permutation(np.delete(everybody, client))
        chosen[[client, *rest[: spec.sample.size - 1]]] = True
        return chosen, [chosen ^ np.isin(everybody, (client, other)) for other in rest[spec.sample.size - 1 :]]
    without = (rng.random(n) < 0.5) & (everybody != client)
    return without | (everybody == client), [without]


def vectors(row: FloatArray, adjacency: Adjacency, unit_bound: float | None) -> list[FloatArray]:
    """Everything else a client could send: any vector, or what another reward makes of its own."""
    if unit_bound is not None:
        return _rewarded(row, unit_bound)
    if adjacency is Adjacency.REPLACE_ONE:
        return [-row, np.zeros(len(row))]
    return [np.zeros(len(row))]


def _rewarded(row: FloatArray, bound: float) -> list[FloatArray]:
    """The vector moved by ``bound``: along itself, along every axis, and across itself."""
    length = float(np.linalg.norm(row))
    ways = [*np.eye(len(row)), np.ones(len(row)) / np.sqrt(len(row))]
    if 0 < length < np.inf:
        ways += [row / length, np.roll(row, 1) / length]
    return [row + sign * bound * way for way in ways for sign in (-1.0, 1.0)]
