"""What a run can release, whether it can change anything, and what would change that; by public numbers alone."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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

    def later(self, factor: float) -> tuple[float, Offer]:
        """Give the run of a multiple of its rounds, and how many those are."""
        rounds = round(factor * self.setting.rounds)
        return rounds, replace(self, setting=replace(self.setting, rounds=rounds))

    def wider(self, factor: float) -> tuple[float, Offer]:
        """Give the run of a multiple of a client's evaluations, and how many those are."""
        algorithm = cast("Any", self.algorithm)
        asked = round(factor * algorithm.evaluations)
        return asked, replace(self, algorithm=replace(algorithm, evaluations=asked))

    def louder(self) -> Iterator[tuple[str, Callable[[float], tuple[float, Offer]]]]:
        """Words for what may be asked more of, and the run that asks for a multiple of it, with how much that is."""
        privacy, setting, algorithm = self.privacy, self.setting, cast("Any", self.algorithm)
        if isinstance(privacy, Privacy) and (epsilon := privacy.epsilon) is not None:

            def dearer(factor: float) -> tuple[float, Offer]:
                asked = float(upper_text(factor * epsilon, 2))
                return asked, replace(self, privacy=replace(privacy, epsilon=asked))

            yield "epsilon {:g}", dearer

        def larger(factor: float) -> tuple[float, Offer]:
            n_clients = round(factor * setting.n_clients)
            return n_clients, replace(self, setting=replace(setting, n_clients=n_clients, records=None))

        def deeper(factor: float) -> tuple[float, Offer]:
            records = cast("Any", setting.records)
            counts = tuple(round(factor * count) for count in records.counts)
            more = replace(setting, records=replace(records, counts=counts))
            return statistics.median(counts), replace(self, setting=more)

        if setting.unit != "record":
            yield "{:g} clients", larger
        elif setting.records is not None:  # more sites do not make one of them louder
            yield "sites of {:g} records at the median", deeper
        if (horizon := getattr(algorithm, "horizon", None)) is not None:

            def longer(factor: float) -> tuple[float, Offer]:
                asked = round(factor * horizon)
                return asked, replace(self, algorithm=replace(algorithm, horizon=asked))

            yield "a horizon of {:g}", longer

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
    ways = tuple(offer.louder())
    if not offer.asks:
        limited = getattr(offer.algorithm, "evaluations", None) is not None
        ways = (("{:g} rounds", offer.later), ("{:g} evaluations of a client", offer.wider))[: 1 + limited]
    ways = tuple(way for way in ways if _is_taken(way[1]))
    found = [words.format(least) for words, make in ways if (least := _least(make)) is not None]
    if not offer.asks and not found:
        ever = any(make(_FACTORS[-1])[1].asks for _, make in ways)
        return "more rounds or evaluations alone would not change that" if ever else None
    return f"{' or '.join(found) or 'nothing within a hundred times what is asked'} would change that"


def _is_taken(make: Callable[[float], tuple[float, Offer]]) -> bool:
    """Whether the algorithm takes the most that would be asked for."""
    try:
        make(_FACTORS[-1])
    except ConfigurationError:
        return False
    return True


def _least(make: Callable[[float], tuple[float, Offer]]) -> float | None:
    """The least of what is asked for at which something is released; None if there is none on the grid."""
    low, high = 0, len(_FACTORS) - 1
    if not _releases(make(_FACTORS[high])[1]):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _releases(make(_FACTORS[middle])[1]) else (middle + 1, high)
    return make(_FACTORS[high])[0]


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
        return _left_out(offer)
    return _kept(offer)


def _left_out(offer: Offer) -> Plan | None:
    whole = offer.price()
    return None if acts(offer.algorithm, offer.setting, whole) else whole


_kept = functools.lru_cache(maxsize=256)(_left_out)


def voted(algorithm: Algorithm, share: float | None) -> Algorithm:
    """Give the algorithm with the vote at the end, where one is asked for."""
    return algorithm if share is None else WithCommon(algorithm=algorithm, share=share)
