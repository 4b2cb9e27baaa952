"""What a run can release, whether it can change anything, and what would change that; by public numbers alone."""

from __future__ import annotations

import functools
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from accountant.errors import PrivacyError
from accountant.wording import upper_text
from privbo.plans.effect import acts, is_optional
from privbo.plans.plan import Plan, price_plan
from privbo.plans.privacy import NoPrivacy, Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Algorithm, Setting
from privbo.protocol.settings import dump_settings
from privbo.runs.best import CommonServer, WithCommon

_FACTORS = tuple(2.0 ** (half / 2) for half in range(1, 14))  # of what is asked, up to about a hundred times


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
        """What may be asked more of, in words, and the run of a multiple of it; of one that asks for nothing its length.

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
        server = voted(self.algorithm, self.share).server(setting)
        rounds = server.server if isinstance(server, CommonServer) else server
        requests = tuple(rounds.plan())
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
            final=server.vote if isinstance(server, CommonServer) else None,
        )


def remedy_of(offer: Offer) -> str | None:
    """Say, by bisection, which epsilon, horizon, or number of clients or records would make it change something.

    Of a run that asks for nothing it is a number of rounds or evaluations, or None: clients alone share nothing ever.
    """
    ways = [(words, make) for words, make in offer.ways() if _is_taken(make)]
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


def voted(algorithm: Algorithm, share: float | None) -> Algorithm:
    """Give the algorithm with the vote at the end, where one is asked for."""
    return algorithm if share is None else WithCommon(algorithm=algorithm, share=share)
