"""The black-box audit of a plan's mechanism: measured lower bound versus the accountant's claim.

Vectors are made up, noise is the shipped secure source: this touches no client and says
something about the code that ran, not about this run's data.

A canary sends a saturating vector of either sign; in three worlds (other clients zero,
other clients opposing it, no other clients) many releases with and without the canary are
told apart by thresholds on linear scores of what came out. Every threshold gives a lower
confidence bound on a point of the hockey-stick curve, delta(epsilon) = sup over events of
P - e^epsilon Q; one above the accountant's curve is a proof, up to the false-alarm rate,
that the mechanism does not do what its event says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from accountant.events import Adjacency, Event, PoissonSampledGaussian, parts
from accountant.tight import numerical
from privbo.audits.clipping import ClippingAudit, PublishedNorms
from privbo.door import sums
from privbo.door.adaptive import AdaptiveSum, QuantileClipper, clip_bits
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import Mechanism, PrivateSum
from privbo.door.noise import NoiseSource, SecureNoise
from privbo.plans.plan import Plan
from privbo.plans.privacy import SITES_ARE_SEEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Request
from privbo.protocol.settings import JsonObject, plain
from privbo.protocol.table import in_two_lines
from privbo.runs.code import CODE
from privbo.runs.manifest import versions
from privbo.runs.opening import planned_requests
from privbo.runs.record import Record

if TYPE_CHECKING:
    from accountant.mechanisms.pair import Pair


EPSILONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
THRESHOLDS = np.linspace(-5.0, 7.0, 49)
ALPHA = 1e-6  # false-alarm rate of one audit
N_BOUNDS = len(THRESHOLDS) * 2 * 2 * 2  # of one measured curve: thresholds, tails, directions, ends


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured point, to compare with the accountant's curve.

    Attributes:
        epsilon: Where both are taken.
        delta_lower: Lower confidence bound on delta, in [0, 1].
        delta_claimed: The accountant's delta, in [0, 1].
    """

    epsilon: float
    delta_lower: float
    delta_claimed: float

    @property
    def passed(self) -> bool:
        """Tell whether the measured bound does not contradict the claim."""
        return self.delta_lower <= self.delta_claimed


def lower_confidence(counts: FloatArray, trials: int, level: float) -> FloatArray:
    """Bound probabilities from below by Clopper and Pearson's rule (1934).

    Args:
        counts: Successes among ``trials``, any shape.
        trials: Independent trials.
        level: Chance that a bound lies above its probability, at most.

    Example:
        >>> lower_confidence(np.array([0.0, 10.0]), 10, 0.05).round(3)
        array([0.   , 0.741])
    """
    from scipy.special import betaincinv

    return np.where(counts > 0, betaincinv(np.maximum(counts, 1.0), trials - counts + 1, level), 0.0)


def upper_confidence(counts: FloatArray, trials: int, level: float) -> FloatArray:
    """Bound probabilities from above by Clopper and Pearson's rule (1934).

    Args:
        counts: Successes among ``trials``, any shape.
        trials: Independent trials.
        level: Chance that a bound lies below its probability, at most.

    Example:
        >>> upper_confidence(np.array([0.0, 10.0]), 10, 0.05).round(3)
        array([0.259, 1.   ])
    """
    from scipy.special import betainccinv

    return np.where(counts < trials, betainccinv(counts + 1, np.maximum(trials - counts, 1.0), level), 1.0)


def measured_curve(plus: FloatArray, minus: FloatArray, level: float) -> FloatArray:
    """Lower bounds on delta at ``EPSILONS``, over all thresholds, both tails and both directions.

    All of them hold at once with a chance of at least 1 - ``N_BOUNDS`` x ``level``.

    Args:
        plus: Scores in one world, ``(n,)``.
        minus: Scores in its neighbour, ``(n,)``.
        level: False-alarm rate of one confidence bound.

    Example:
        >>> measured_curve(np.full(1000, 3.0), np.zeros(1000), 1e-6)[:3].round(3)
        array([0.973, 0.969, 0.964])
    """
    trials = len(plus)
    curve = np.zeros(len(EPSILONS))
    for first, second in ((plus, minus), (minus, plus)):
        for tail in (1.0, -1.0):
            seen, unseen = (
                trials - np.searchsorted(np.sort(tail * sample), THRESHOLDS, side="right").astype(np.float64)
                for sample in (first, second)
            )
            low, high = lower_confidence(seen, trials, level), upper_confidence(unseen, trials, level)
            gaps = low[None, :] - np.exp(EPSILONS)[:, None] * high[None, :]
            curve = np.maximum(curve, gaps.max(axis=1))
    return curve


def curve_of(pairs: Iterable[Pair]) -> FloatArray:
    """The largest P(L > epsilon) - e^epsilon Q(L > epsilon) of dominating pairs at ``EPSILONS``, rounding added.

    Args:
        pairs: Dominating pairs of one release, one for each direction of the neighbours.
    """
    epsilons = np.asarray(EPSILONS)
    curve = np.zeros(len(epsilons))
    for pair in pairs:
        tails = pair.tails(epsilons)
        lost, kept = tails.p_above, np.exp(epsilons) * tails.q_above
        curve = np.maximum(curve, lost - kept + tails.relative_error * (lost + kept))
    return curve


def closest_point(measured: FloatArray, accounted: FloatArray) -> Point:
    """The point that comes nearest to the accountant's curve, by its share of it; any above come before any below.

    Args:
        measured: Measured curves, ``(n_curves, n_epsilons)``.
        accounted: The accountant's, ``(n_epsilons,)``.

    Example:
        >>> closest_point(np.array([[0.1, 0.02] + 8 * [0.0]]), np.array([0.4, 0.04] + 8 * [1e-3]))
        Point(epsilon=0.25, delta_lower=0.02, delta_claimed=0.04)
    """
    points = (
        Point(epsilon=epsilon, delta_lower=lower, delta_claimed=claimed)
        for curve in measured.tolist()
        for epsilon, lower, claimed in zip(EPSILONS, curve, accounted.tolist(), strict=True)
    )
    return max(
        points,
        key=lambda point: (not point.passed, point.delta_lower / point.delta_claimed if point.delta_claimed else 0.0),
    )


World: TypeAlias = Literal["others zero", "others opposing", "alone"]
Attacked: TypeAlias = PrivateSum | AdaptiveSum
# Mechanism, weights, everybody's vectors (of length one), trials and noise make (trials, n_blocks), or a block more.
Releases: TypeAlias = Callable[[Attacked, FloatArray, FloatArray, int, NoiseSource], FloatArray]


def heaviest_client(weights: FloatArray) -> int:
    """Index of the client whose weights, ``(n_blocks, n_clients)``, have the largest norm: the best canary."""
    return int(np.argmax(np.linalg.norm(weights, axis=0)))


def neighbours(mechanism: PrivateSum, n_clients: int, canary: int, world: World) -> tuple[FloatArray, FloatArray]:
    """All clients' vectors, ``(n_clients, 1)``, with the canary and in the neighbouring world without it.

    Args:
        mechanism: Sets the adjacency, and how much the canary sends: twice the clipping norm, or half of what one
            reward, or the records of one person, move.
        n_clients: Clients in this world.
        canary: Who differs.
        world: What the others send.
    """
    long = 2.0 * mechanism.clipping_norm
    moved = long if mechanism.move is None else 0.5 * mechanism.move.bound * mechanism.move.group_size
    present = np.full((n_clients, 1), -long if world == "others opposing" else 0.0)
    absent = present.copy()
    present[canary] = moved
    absent[canary] = -moved if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    return present, absent


def _with_bits(mechanism: Attacked, weights: FloatArray) -> tuple[PrivateSum, FloatArray]:
    """Sums of vectors, and the weights of all that is released: bits that adapt a bound are one block more.

    It is scaled so that all blocks have the same noise. Where positive vectors are too long, negative ones are within
    the bound and who sends zero is absent, a client's bit is its clipped vector times this weight.
    """
    if not isinstance(mechanism, AdaptiveSum):
        return mechanism, weights
    weight = -0.5 / mechanism.vectors.applied_bound * mechanism.noise_stddev() / mechanism.bits.noise_stddev()
    return mechanism.vectors, np.vstack([weights, np.full((1, weights.shape[1]), weight)])


def releases(mechanism: Attacked, weights: FloatArray, rows: FloatArray, trials: int, noise: NoiseSource) -> FloatArray:
    """Make independent releases of the same vectors by the shipped code, ``(trials, n_blocks)``, or bits as one more.

    Of guardians' noises there are those that the event counts on; an observer may know the others.

    Args:
        mechanism: The mechanism that is attacked.
        weights: Public weights, ``(n_blocks, n_clients)``.
        rows: All clients' vectors, ``(n_clients, 1)``.
        trials: Number of releases.
        noise: Source of noise and participation.
    """
    participation = mechanism.sample.draw(trials, noise)
    vectors, _ = _with_bits(mechanism, weights)
    clipped = clip_rows(rows, vectors.applied_bound)
    released = sums.noisy_sums(vectors, weights, clipped, participation, noise)[:, :, 0]
    if isinstance(mechanism, AdaptiveSum):
        sent = np.where(rows == 0, np.nan, np.maximum(rows, clipped))
        bits = clip_rows(clip_bits(sent, vectors.vector_bound), mechanism.bits.applied_bound)
        counted = sums.noisy_sums(mechanism.bits, np.ones((1, len(rows))), bits, participation, noise)[:, :, 0]
        return np.hstack([released, counted * mechanism.noise_stddev() / mechanism.bits.noise_stddev()])
    nothing = np.zeros(released.shape, dtype=np.int64)
    return sum((sums.hidden(vectors, nothing, noise) for _ in range(1, vectors.n_counted)), released)


def scores(column: FloatArray, stddev: float) -> Iterator[tuple[FloatArray, float]]:
    """Linear scores of a release with their noise's standard deviation: the best one, every block, every contrast.

    Args:
        column: The canary's weights, ``(n_blocks,)``.
        stddev: Standard deviation of the noise in every released entry.

    Example:
        >>> [direction.tolist() for direction, _ in scores(np.array([0.0, 2.0]), 1.0)]
        [[0.0, 1.0], [1.0, 0.0], [-1.0, 1.0], [0.0, 1.0], [-1.0, 1.0]]
    """
    yield column / np.linalg.norm(column), stddev
    n_blocks = len(column)
    if n_blocks == 1:
        return
    for block in range(n_blocks):
        yield np.eye(n_blocks)[block], stddev
        contrast = np.eye(n_blocks)[block] - np.eye(n_blocks)[block - 1]
        yield np.sign(contrast @ column or 1.0) * contrast, stddev * 2**0.5


def moments(
    mechanism: PrivateSum, weights: FloatArray, rows: FloatArray, direction: FloatArray, stddev: float
) -> tuple[float, float]:
    """Mean and standard deviation of a score under Poisson sampling, by the mechanism's own description.

    Args:
        mechanism: Sets the clipping bound and the sample rate.
        weights: Public weights, ``(n_blocks, n_clients)``.
        rows: All clients' vectors, ``(n_clients, 1)``.
        direction: The score, ``(n_blocks,)``.
        stddev: Standard deviation of the noise in the score.
    """
    each = direction @ (weights * clip_rows(rows, mechanism.applied_bound)[:, 0])
    sampled = np.sum(each**2) * (1 - mechanism.sample.rate) / mechanism.sample.rate
    return float(each.sum()), float(np.sqrt(stddev**2 + sampled))


def _price(mechanism: Attacked) -> Event:
    """The event of what is attacked: the trainings that a release is charged with are not."""
    if isinstance(mechanism, AdaptiveSum) or mechanism.training is None:
        return mechanism.event()
    return dataclasses.replace(mechanism, training=None).event()


def audit_curve(
    build: Callable[[FloatArray], Attacked],
    weights: FloatArray,
    *,
    noise: NoiseSource,
    world: World,
    trials: int = 100_000,
    alpha: float = ALPHA,
    release: Releases = releases,
) -> Point:
    """Measure a mechanism's hockey-stick curve in one world and hold it against its event, where they come closest.

    Args:
        build: The mechanism for given weights (in the world "alone" one client has any).
        weights: Public weights, ``(n_blocks, n_clients)``; the canary is the client with
            the largest column norm.
        noise: Source of noise and participation, as used by the release.
        world: What the other clients send.
        trials: Releases with and without the canary, each.
        alpha: Probability that a sound mechanism fails, at most.
        release: The code under audit; the shipped one unless said otherwise.
    """
    canary = heaviest_client(weights)
    if world == "alone":
        weights, canary = weights[:, [canary]], 0
    mechanism = build(weights)
    vectors, whole = _with_bits(mechanism, weights)
    present, absent = neighbours(vectors, weights.shape[1], canary, world)
    tried = list(scores(whole[:, canary], mechanism.noise_stddev()))
    # Both signs and all scores are tested at once.
    level = alpha / (2 * len(tried) * N_BOUNDS)
    measured = []
    for sign in (1.0, -1.0):
        # Releases for the negative canary are mirrored, so that one set of thresholds serves both signs.
        both = [sign * release(mechanism, weights, sign * rows, trials, noise) for rows in (present, absent)]
        for direction, stddev in tried:
            # Thresholds follow from public numbers, so no trial is spent on finding them.
            centre, spread = moments(vectors, whole, absent, direction, stddev)
            plus, minus = ((released @ direction - centre) / spread for released in both)
            measured.append(measured_curve(plus, minus, level))
    (event, _), *_ = parts(_price(mechanism))
    return closest_point(np.array(measured), curve_of(event.pairs(vectors.adjacency)))


def epsilon_lower_bound(
    mechanism: Attacked,
    weights: FloatArray,
    *,
    noise: NoiseSource,
    delta: float,
    trials: int = 100_000,
    alpha: float = 0.05,
    release: Releases = releases,
) -> tuple[float, float]:
    """Lower confidence bound on epsilon at ``delta`` of one release, and the accountant's value.

    The canary takes part with probability q, the stated rate, and then moves its score by
    mu noise standard deviations. With Gaussian noise the total variation between its
    presence and its absence is q (2 Phi(mu / 2) - 1), and every test errs at least that much
    less than 1: fpr + fnr >= 1 - q (2 Phi(mu / 2) - 1). So an upper bound on the two rates of
    one threshold on the score bounds mu from below, and the epsilon of a sampled Gaussian
    with that mu bounds the mechanism's. At rate 1 nothing but this is used; below it the
    statement is: either participation is not sampled at the stated rate, or epsilon is at
    least this. The errors of both worlds are independent trials; among such sums with a
    given mean the binomial has the widest tails (Hoeffding 1956), so one Clopper-Pearson
    bound over 2 x ``trials`` covers them.

    Args:
        mechanism: The mechanism that is attacked.
        weights: Public weights, ``(n_blocks, n_clients)``; the canary is the client with
            the largest column norm.
        noise: Source of noise and participation, as used by the release.
        delta: Where epsilon is bounded, in (0, 1).
        trials: Releases with and without the canary, each.
        alpha: Probability that the bound lies above a sound mechanism's epsilon, at most.
        release: The code under audit; the shipped one unless said otherwise.

    Returns:
        The bound (infinite if presence shows more than any noise at that rate would let
        it) and the accountant's epsilon.
    """
    from scipy.special import ndtri

    canary = heaviest_client(weights)
    vectors, whole = _with_bits(mechanism, weights)
    present, absent = neighbours(vectors, weights.shape[1], canary, "others zero")
    direction, scale = next(scores(whole[:, canary], mechanism.noise_stddev()))
    with_canary, without = (
        release(mechanism, weights, rows, trials, noise) @ direction / scale for rows in (present, absent)
    )
    # The best threshold lies midway between the canary's score and its absence's, both stated.
    each = np.linalg.norm(whole[:, canary]) * vectors.applied_bound / mechanism.sample.rate / scale
    middle = each / 2 if vectors.adjacency is Adjacency.ZERO_OUT else 0.0
    errors = np.asarray(np.sum(without > middle) + np.sum(with_canary <= middle), dtype=np.float64)
    apart = max(0.0, 1.0 - 2.0 * float(upper_confidence(errors, 2 * trials, alpha))) / mechanism.sample.rate
    mu = 2.0 * float(ndtri((1.0 + apart) / 2)) if apart < 1 else np.inf
    claimed = numerical.epsilon(_price(mechanism), delta, adjacency=vectors.adjacency)
    if mu in (0.0, np.inf):
        return mu, claimed
    event = PoissonSampledGaussian(sample_rate=mechanism.sample.rate, noise_multiplier=1.0 / mu)
    return numerical.epsilon_interval(event, delta, adjacency=vectors.adjacency).lower, claimed


_MOST_MECHANISMS = 3


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """Outcome of attacking one mechanism in one world.

    Attributes:
        event: What the sums of a release are charged as.
        world: What the other clients send.
        trials: Releases with and without the canary.
        passed: Whether the measured curve stays below the claimed one.
        epsilon: Where they come closest.
        delta_lower: Lower confidence bound there.
        delta_claimed: The accountant's value there.
        delta: Of the two below.
        epsilon_lower: Epsilon of one release is at least this, with 95 % confidence; below
            rate 1 if participation is sampled as stated.
        epsilon_claimed: The accountant's epsilon of one release.
        alpha: False-alarm rate of ``passed``.
        n_mechanisms: Different mechanisms of the plan; only its first three are attacked.
    """

    event: str
    world: str
    trials: int
    passed: bool
    epsilon: float
    delta_lower: float
    delta_claimed: float
    delta: float
    epsilon_lower: float
    epsilon_claimed: float
    alpha: float
    n_mechanisms: int

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        return "within the claim" if self.passed else "ABOVE THE CLAIM"


def audit_run(record: Record, *, trials: int, trust: bool = False) -> tuple[Empirical, ...]:
    """Audit the mechanisms of a run's plan, from its public configuration.

    Args:
        record: A private run, finished or not.
        trials: Releases with and without the canary, each.
        trust: Import the algorithm that a loaded run names, where it is one of the user's own.

    Raises:
        RunError: If the algorithm is a user's own, and was not imported.
        ConfigurationError: If the run is not private, or was made by other code than is installed, which
            is what would be attacked.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda clients, x: x[:, 0], n_clients=5)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> made = pb.run(problem, pb.DPFTSDE(n_features=8), privacy=privacy, rounds=1, seed=1)
        >>> [(row.world, row.verdict) for row in audit_run(made, trials=1000)][0]
        ('others zero', 'within the claim')
    """
    if record.plan.noise_multiplier is None:
        raise ConfigurationError("a run without noise claims nothing, so there is nothing to audit")
    ours, made_by = versions(), record.manifest.versions
    for name in (name for name in ("privbo", CODE) if name in made_by and made_by[name] != ours[name]):
        raise ConfigurationError(
            f"the run was made by {name} {made_by[name]}, installed is {ours[name]}, which the attack would "
            "try out instead; audit it with that version, or audit its configuration file (TOML)"
        )
    spec = record.spec.with_algorithm() if trust else record.spec
    return audit_plan(record.plan, planned_requests(spec), trials=trials)


def audit_plan(plan: Plan, requests: Iterable[Request], *, trials: int) -> tuple[Empirical, ...]:
    """Audit the first mechanisms of a plan that differ, at most three, in every world.

    Args:
        plan: Says which mechanism answers a request, and at which delta the claimed and the measured epsilon are
            compared. Where the clipping bound moves, the bits that move it are attacked with the vectors.
        requests: Of the run.
        trials: Releases with and without the canary, each.

    Raises:
        ConfigurationError: If the plan releases nothing.
    """
    different = dict[Mechanism, Request]()
    for request in requests:
        different.setdefault(plan.mechanism(request), request)
    if not different:
        raise ConfigurationError("the plan releases nothing, so there is nothing to audit")
    return tuple(
        found
        for request in list(different.values())[:_MOST_MECHANISMS]
        for found in _audit(plan, request, trials=trials, n_mechanisms=len(different))
    )


def _audit(plan: Plan, request: Request, *, trials: int, n_mechanisms: int) -> Iterator[Empirical]:
    adaptive = plan.privacy.adaptive_clipping

    def build(weights: FloatArray) -> Attacked:
        described = plan.mechanism(dataclasses.replace(request, weights=weights))
        if not isinstance(described, PrivateSum):
            raise ConfigurationError("a release without noise claims nothing, so there is nothing to audit")
        return described if adaptive is None else QuantileClipper(settings=adaptive).mechanism(described)

    whole, noise = build(request.weights), SecureNoise()
    lower, claimed = epsilon_lower_bound(whole, request.weights, noise=noise, delta=plan.delta, trials=trials)
    for world in get_args(World):
        point = audit_curve(build, request.weights, noise=noise, world=world, trials=trials)
        yield Empirical(
            event=f"{_price(whole).text}, clipped to {request.clipping_norm:.4g}"
            + f" ({SITES_ARE_SEEN})" * (request.unit == "record")
            + ", with the count of who is within" * (adaptive is not None)
            + "; trainings are not attacked" * (request.training is not None),
            world=world,
            trials=trials,
            passed=point.passed,
            delta=plan.delta,
            epsilon_lower=lower,
            epsilon_claimed=claimed,
            alpha=ALPHA,
            n_mechanisms=n_mechanisms,
            **vars(point),
        )


@dataclass(frozen=True, kw_only=True)
class Audit:
    """PRIVATE where it holds a clipping audit: what an audit found.

    Attributes:
        name: Name of the run or the configuration.
        clipping: PRIVATE: effect of clipping on the run's vectors; None for a configuration.
        empirical: Outcomes of attacking the mechanism, one per mechanism and world.
        published: Public: histogram of norms under a charge, or None.
        page: Where the page was written, or None.
    """

    name: str
    clipping: ClippingAudit | None
    empirical: tuple[Empirical, ...]
    published: PublishedNorms | None = None
    page: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether no attack contradicts the claim."""
        return all(row.passed for row in self.empirical)

    @property
    def attacks(self) -> str:
        """How much was attacked, in words."""
        different = self.empirical[0].n_mechanisms if self.empirical else 0
        tried = min(different, _MOST_MECHANISMS)
        return f"{len(self.empirical)} attacks on {tried} of {different} different mechanisms"

    def __repr__(self) -> str:
        clipping = "no clipping audit" if self.clipping is None else self.clipping.verdict
        attacks = f"{self.attacks}, {'none' if self.passed else 'SOME'} beyond the claim"
        return in_two_lines("Audit", self.name, attacks, clipping)

    def to_dict(self) -> JsonObject:
        """Give the audit as JSON-able data; what was not asked for is left out."""
        found: JsonObject = {"audit": self.name, "empirical": plain(self.empirical)}
        if self.clipping is not None:
            found |= {"note": self.clipping.note, "clipping": plain(self.clipping)}
        if self.page is not None:
            found["report"] = str(self.page)
        if self.published is not None:
            found["published_norms"] = plain(self.published)
        return found
