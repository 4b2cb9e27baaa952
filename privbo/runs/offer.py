"""What a run can release, whether that can change or gain anything, and what would; by public numbers alone.

Clients that are all alike answer as loudly as clipping allows. If even then the run would be the same without
their sums, its releases say nothing: none is made and nothing is charged. Algorithms that fit a model to what is
released name the least signal-to-noise ratio that gains (``least_signal_to_noise``). For the others alike clients are
played on drawn surfaces, with their sums and without, under the same noise, until they differ.

The noise drawn here hides nothing: it is seeded, and meets no client's data.
"""

from __future__ import annotations

import functools
import statistics
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np

from accountant.errors import PrivacyError
from accountant.wording import upper_text
from privbo.door.mechanism import PrivateSum
from privbo.plans.plan import Plan, price_plan
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.common import CHOSEN, ReleaseWhen
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    Cohort,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Release,
    Request,
    Server,
    Setting,
)
from privbo.protocol.settings import dump_settings
from privbo.runs.best import CommonServer

_FACTORS = tuple(2.0 ** (half / 2) for half in range(1, 14))  # of what is asked, up to about a hundred times
_SURFACES, _CLEAR = 40, 6  # most surfaces, and the lead of one answer over the other at which no more are drawn
_WAVES = 8
_FREQUENCY = 3.0  # standard deviation, in radians over the cube's side: about one hill or valley per coordinate
_NET = 512  # points by which a surface is stretched over the range of rewards
_LOOKS = 24  # most turns of evaluations between two releases, or after the last; runs that differ do so in the first


def is_optional(algorithm: Algorithm) -> bool:
    """Tell whether an algorithm leaves out releases that can change nothing; one that does not say makes them all."""
    return getattr(algorithm, "release_when", "always") == "useful"


def always(algorithm: Algorithm) -> Algorithm:
    """Give the algorithm that makes all its releases, whatever they can change: for studies of it, and for tests."""
    return _releasing(algorithm, "always") if is_optional(algorithm) else algorithm


def useful(algorithm: Algorithm) -> Algorithm:
    """Give the algorithm that leaves out what can change nothing, if it has the setting; else the same."""
    return _releasing(algorithm, "useful") if hasattr(algorithm, "release_when") else algorithm


def _releasing(algorithm: Algorithm, when: ReleaseWhen) -> Algorithm:
    return cast("Algorithm", replace(cast("Any", algorithm), release_when=when))


def acts(algorithm: Algorithm, setting: Setting, plan: Plan) -> bool:
    """Tell whether releases, at their loudest, change a point or the common answer with probability one half, or gain.

    Args:
        algorithm: What is run.
        setting: Public facts of the run.
        plan: With every release that the algorithm can make.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=12)
        >>> def releases(epsilon):
        ...     return pb.plan(problem, pb.PFPNE(horizon=22), privacy=pb.Privacy(epsilon=epsilon), rounds=20).releases
        >>> releases(2.0), releases(40.0)
        (0, 5)
    """
    if plan.largest_over_noise is None:
        return True
    least: Callable[[Setting], float] | None = getattr(algorithm, "least_signal_to_noise", None)
    if least is not None:
        return plan.largest_over_noise >= least(setting)
    lead = 0  # of surfaces on which runs differ over those on which they don't
    for surface in range(_SURFACES):
        lead += 1 if _differs(algorithm, setting, plan, surface) else -1
        if abs(lead) == _CLEAR:
            break
    return lead >= 0


def _differs(algorithm: Algorithm, setting: Setting, plan: Plan, seed: int) -> bool:
    """Whether alike clients on a drawn surface evaluate, use or announce another point than by noise alone."""
    loud, zeroed = (_Side(algorithm, setting, seed) for _ in range(2))
    rng = np.random.default_rng([seed, 1])
    while True:
        ask, other = loud.ask(), zeroed.ask()
        if loud.done != zeroed.done:
            return True
        if ask is None or other is None or loud.turns > _LOOKS:
            return False
        if ask.request is None or other.request is None:
            loud.server.tell(None)
            zeroed.server.tell(None)
            continue
        mechanism = plan.mechanism(ask.request)
        stddev = mechanism.noise_stddev() if isinstance(mechanism, PrivateSum) else 0.0
        noise = rng.normal(0.0, stddev, (ask.request.n_blocks, ask.request.dim))
        loud.tell(ask, noise + loud.sums(ask.request), stddev)
        zeroed.tell(other, noise, stddev)


class _TiredError(Exception):
    """A client has been looked at for long enough."""


class _Side:
    """All clients of a run as one, which they are while they are alike, on a drawn surface.

    Attributes:
        server, cohort: The public side, and the one client.
        done: What the last round did, to be compared: points that were evaluated, announced or would be used.
        turns: Of evaluations since the last release.
    """

    def __init__(self, algorithm: Algorithm, setting: Setting, seed: int) -> None:
        self.done: list[bytes] = []
        self.turns = 0
        self._asked: list[bytes] = []
        self._answer = np.zeros(0)
        low, high = getattr(algorithm, "reward_range", (0.0, 1.0))
        share = _surface(seed, setting.space.n_dims)

        def pull(_clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
            self.turns += 1
            if self.turns > _LOOKS:
                raise _TiredError
            self._asked.append(units.tobytes() + counts.tobytes())
            return low + (high - low) * share(units)

        evaluate = PlainEvaluate(lambda clients, units: pull(clients, units, np.ones(len(units), int)), pull=pull)
        one = np.zeros(1, dtype=np.int64)
        self.cohort: Cohort = algorithm.cohort(setting, clients=one, evaluate=evaluate, seed=seed)
        self.server: Server = algorithm.server(setting)

    def ask(self) -> Ask | None:
        """Ask the server, and let the client answer."""
        ask = self.server.ask()
        if ask is None:
            self.done = [b"over", self.cohort.history().recommended.tobytes()]
            return None
        self._asked.clear()
        with suppress(_TiredError):
            self._answer = np.asarray(self.cohort.respond(ask.broadcast), dtype=np.float64)
        chosen = ask.broadcast.arrays.get(CHOSEN)
        shape = b"local" if ask.request is None else str((ask.request.n_blocks, ask.request.dim)).encode()
        self.done = [shape, b"" if chosen is None else chosen.tobytes(), *self._asked]
        return ask

    def sums(self, request: Request) -> FloatArray:
        """What is released of clients that all give this answer, without noise, ``(n_blocks, dim)``."""
        answer = self._answer[0] if np.isfinite(self._answer[0]).all() else np.zeros(request.dim)
        bound, norm = request.clipping_norm / np.sqrt(request.n_blocks), float(np.linalg.norm(answer))
        return np.outer(request.weights.sum(axis=1), answer * min(1.0, bound / max(norm, 1e-300)))

    def tell(self, ask: Ask, values: FloatArray, stddev: float) -> None:
        """Tell the server a release."""
        round_, self.turns = ask.broadcast.round, 0
        self.server.tell(Release(round=round_, values=values, noise_stddev=stddev, sequence=round_, head=""))


def _surface(seed: int, n_dims: int) -> Callable[[FloatArray], FloatArray]:
    """A smooth random function on the cube, a sum of waves, whose values fill the range from 0 to 1."""
    rng = np.random.default_rng([seed, 0])
    frequencies = rng.normal(0.0, _FREQUENCY, (_WAVES, n_dims))
    phases = rng.uniform(0.0, 2.0 * np.pi, _WAVES)

    def waves(units: FloatArray) -> FloatArray:
        return np.asarray(np.cos(units @ frequencies.T + phases).sum(axis=1))

    net = waves(rng.random((_NET, n_dims)))
    return lambda units: np.clip((waves(units) - net.min()) / (net.max() - net.min()), 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Everything that a run's algorithm can release, by public numbers; equal where those are.

    Attributes:
        algorithm: Of the run.
        setting: Public facts of the run.
        privacy: Of the run.
        share: The vote's share of the budget; None without one.
        told: The facts of the setting on which a plan rests.
    """

    algorithm: Algorithm
    setting: Setting = field(compare=False)
    privacy: Privacy | NoPrivacy
    share: float | None
    told: str = field(init=False)

    def __post_init__(self) -> None:
        where, space = self.setting, self.setting.space
        parameters = {name: dump_settings(parameter) for name, parameter in space.parameters.items()}
        facts = where.n_clients, where.rounds, where.unit, where.records, parameters, space.constraints
        object.__setattr__(self, "told", repr(facts))

    @property
    def asks(self) -> bool:
        """Whether any round asks for a release: none does of clients alone, nor where there are too few rounds."""
        return next(iter(self.algorithm.server(self.setting).plan()), None) is not None

    @property
    def median_records(self) -> float | None:
        """Records of a site of median size; None where the problem does not say."""
        return None if self.setting.records is None else statistics.median(self.setting.records.counts)

    def ways(self) -> Iterator[tuple[str, Callable[[float], Offer]]]:
        """What may be asked more of, in words, and the run of a multiple of it: of one without requests its length.

        More sites do not make one of them louder, so of those it is records.
        """
        privacy, setting, algorithm, records = (
            self.privacy,
            self.setting,
            cast("Any", self.algorithm),
            self.setting.records,
        )

        def of(**facts: Any) -> Offer:  # noqa: ANN401 (fields of a setting)
            return replace(self, setting=replace(setting, **facts))

        def with_more(name: str, by: float) -> Offer:
            return replace(self, algorithm=replace(algorithm, **{name: round(by * getattr(algorithm, name))}))

        if not self.asks:
            yield "{.setting.rounds:g} rounds", lambda by: of(rounds=round(by * setting.rounds))
            if getattr(algorithm, "evaluations", None) is not None:
                yield "{.algorithm.evaluations:g} evaluations of a client", partial(with_more, "evaluations")
            return
        if isinstance(privacy, Privacy) and (epsilon := privacy.epsilon) is not None:
            yield (
                "epsilon {.privacy.epsilon:g}",
                lambda by: replace(self, privacy=replace(privacy, epsilon=float(upper_text(by * epsilon, 2)))),
            )
        if setting.unit != "record":
            yield "{.setting.n_clients:g} clients", lambda by: of(n_clients=round(by * setting.n_clients), records=None)
        elif records is not None:
            yield (
                "sites of {.median_records:g} records at the median",
                lambda by: of(records=replace(records, counts=tuple(round(by * count) for count in records.counts))),
            )
        if getattr(algorithm, "horizon", None) is not None:
            yield "a horizon of {.algorithm.horizon:g}", partial(with_more, "horizon")

    def price(self) -> Plan:
        """Price it."""
        setting = self.setting
        records = setting.records if setting.unit == "record" else None
        server = self.algorithm.server(setting)
        common = None if self.share is None else CommonServer(server, setting, self.share)
        requests = tuple(server.plan())
        if setting.trains and any(request.training is None for request in requests):
            raise ConfigurationError(
                f"{type(self.algorithm).__name__} asks for scores and leaves out what training their models costs; "
                "give its requests training=setting.records.trained(n_evaluations)"
            )
        return price_plan(
            self.privacy,
            requests,
            n_clients=setting.n_clients,
            n_records=None if records is None else sum(records.counts),
            final=None if common is None else common.vote,
        )


def remedy_of(offer: Offer) -> str | None:
    """Say, by bisection, which epsilon, horizon, or number of clients or records would make it change something.

    Of a run that asks for nothing it is a number of rounds or evaluations, or None: clients alone share nothing ever.
    """
    ways = [(words, make) for words, make in offer.ways() if _is_taken(make)]
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of runs that nobody asked for
        found = [words.format(least) for words, make in ways if (least := _least(make)) is not None]
    if not offer.asks and not found:
        ever = any(make(_FACTORS[-1]).asks for _, make in ways)
        return "more rounds or evaluations alone would not change that" if ever else None
    return f"{' or '.join(found) or 'nothing within a hundred times what is asked'} would change that"


def _is_taken(make: Callable[[float], Offer]) -> bool:
    """Whether the algorithm takes the most that would be asked for."""
    try:
        make(_FACTORS[-1])
    except ConfigurationError:
        return False
    return True


def _least(make: Callable[[float], Offer]) -> Offer | None:
    """The run that asks for the least at which something is released; None if there is none on the grid."""
    if not _releases(make(_FACTORS[-1])):
        return None
    return make(_FACTORS[bisect_left(_FACTORS[:-1], 1, key=lambda by: int(_releases(make(by))))])


def _releases(offer: Offer) -> bool:
    try:
        found = offer.asks and not (is_optional(offer.algorithm) and left_out(offer))
    except PrivacyError:  # what cannot be planned releases nothing
        return False
    return found


def left_out(offer: Offer) -> Plan | None:
    """Give the plan of releases that change too little to be made (see ``acts``); None where they are made.

    It is the same in every process, whatever was planned before.
    """
    try:
        hash(offer)
    except TypeError:  # an algorithm of the user's that cannot be a key
        return _left_out.__wrapped__(offer)
    return _left_out(offer)


@functools.lru_cache(maxsize=256)
def _left_out(offer: Offer) -> Plan | None:
    whole = offer.price()
    return None if acts(offer.algorithm, offer.setting, whole) else whole
