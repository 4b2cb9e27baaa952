"""Settings that a run ends with: every client's own best one (PRIVATE), and a common one that a final vote chooses.

Any algorithm that names public candidates can end with a vote. Rounds, after the algorithm's own:

    vote        candidates go out, every client answers with its ballot, one noisy mean of ballots is released
    announce    the chosen candidate goes out to all clients; nothing is asked for

The vote is planned, charged and drawn as every other release. Its share of the run's squared budget is a setting:
Gaussian differential privacy adds in squares, so with share f of it and A the sum of the other releases' 1 / scale^2,
the vote's noise multiplier is sqrt((1 - f) / (f A)) times the run's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence as Numbers
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from accountant.verify.text import at_least
from privbo.protocol.common import (
    CANDIDATES,
    CHOSEN,
    LAST_ROUND,
    N_CANDIDATES,
    Judging,
    Proposing,
    ballot_request,
    ballots,
)
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import load_arrays, read_json, require_contained, write_json
from privbo.protocol.messages import (
    Array,
    Arrays,
    Ask,
    Broadcast,
    ClientHistory,
    FloatArray,
    IntArray,
    Release,
    Request,
    Requesting,
    Server,
    Setting,
    best_unit,
)
from privbo.protocol.settings import Sequence, dump_settings, read_settings, settings
from privbo.protocol.space import Parameter, Space, Value
from privbo.runs.altered import AlteredCohort

FACTS = "facts.json"  # of a site's folder
EVALUATIONS = "evaluations.npz"


@dataclass(frozen=True, kw_only=True)
class Best:
    """PRIVATE: the point that a client would use; it belongs to that client.

    Attributes:
        client: Its number.
        params: Values by name.
        value: Mean of what the objective gave the client there.

    Example:
        >>> Best(client=3, params={"C": 1.0}, value=0.9).params["C"]
        1.0
    """

    client: int
    params: dict[str, Value]
    value: float


def best_points(history: ClientHistory, space: Space, clients: Numbers[int]) -> tuple[Best, ...]:
    """PRIVATE: decode the point that every client would use; who has no finite value is left out.

    It is the point that the algorithm recommends. An elimination recommends by lower confidence bounds, since the
    largest of many noisy means is a lucky one; the others the point whose values are best on average.

    Args:
        history: Of the clients.
        space: The search space.
        clients: Their numbers, in the history's order.
    """
    found, calls = [], np.maximum(np.asarray(history.calls), 1)  # of what was made before the run none is counted
    for row, client in enumerate(clients):
        known = np.isfinite(history.values[row])
        if not known.any():
            continue
        unit = history.recommended[row]
        there = known & (history.units[row] == unit).all(axis=1)
        if not there.any():  # recommended by what others found, or not at all: what the client itself has seen counts
            unit = best_unit(history.units[row], history.values[row], calls[row])
            there = known & (history.units[row] == unit).all(axis=1)
        value = float(np.average(history.values[row][there], weights=calls[row][there]))
        found.append(Best(client=int(client), params=space.decode(unit), value=value))
    return tuple(found)


def read_history(path: Path) -> ClientHistory:
    """PRIVATE: read the evaluations of clients as a run or a site keeps them."""
    return ClientHistory(**load_arrays(path))


@settings(table="facts")
class SiteFacts:
    """Numbers of a site's clients and their search space, as a site stores them with its evaluations."""

    clients: Sequence[int]
    space: dict[str, Parameter]
    constraints: Sequence[str] = ()

    @classmethod
    def of(cls, clients: IntArray, space: Space) -> SiteFacts:
        """Give the facts of some clients and their space."""
        parameters, constraints = dict(space.parameters), tuple(space.constraints)
        return cls(clients=tuple(clients.tolist()), space=parameters, constraints=constraints)

    @property
    def search_space(self) -> Space:
        """The search space, to decode points with."""
        return Space(self.space, self.constraints)

    def has_point(self, found: Array) -> bool:
        """Tell whether an array is a point of the space, as another party may have sent it."""
        return found.shape == (len(self.space),) and found.dtype.kind == "f" and bool(np.isfinite(found).all())


def file_of_one_run(directory: Path, name: str) -> Path | None:
    """Find a file in a folder of one run, or in the only such folder inside; None where there is none.

    Raises:
        RunError: If several folders inside have one, or a link leads out of the directory.
    """
    found = [directory / name] if (directory / name).exists() else sorted(directory.glob(f"*/{name}"))
    if len(found) > 1:
        runs = ", ".join(path.parent.name for path in found)
        raise RunError(f"{directory} holds {len(found)} runs: {runs}; name one's folder")
    if not found:
        return None
    require_contained(directory)
    return found[0]


def site_facts(folder: Path) -> SiteFacts:
    """Read what the arrays in a site's folder of one run speak of."""
    return read_settings(SiteFacts, read_json(folder / FACTS), FACTS)


def best_at_site(folder: Path) -> tuple[tuple[Best, ...], tuple[int, ...]]:
    """PRIVATE: give the points of a site's own clients, and who of them has none, from the site's folder of one run.

    Raises:
        RunError: If its clients have evaluated nothing yet.
    """
    facts = site_facts(folder)
    if not (folder / EVALUATIONS).exists():
        raise RunError(f"{folder}: its clients have evaluated nothing yet; ask again after the first round")
    found = best_points(read_history(folder / EVALUATIONS), facts.search_space, facts.clients)
    return found, tuple(sorted(set(facts.clients) - {best.client for best in found}))


class CommonServer:
    """The public side: the algorithm's server, then the vote, then the announcement."""

    def __init__(self, server: Server, setting: Setting, share: float) -> None:
        if setting.unit != "client":
            raise ConfigurationError(
                "final='common': a ballot rests on everything that a client holds, so its price is known for one "
                "client only; set privacy.unit='client' or drop final"
            )
        if not isinstance(server, Proposing):
            raise ConfigurationError(
                "final='common': this algorithm names no public candidates; use shared-prior, dp-fts-de, fed-pne, "
                "pf-pne or parallel, give its server a propose(count), or drop final"
            )
        self.server, self._proposing = server, server
        self._n_clients, self._n_dims, self._share = setting.n_clients, setting.space.n_dims, share
        self._stage: Literal["rounds", "vote", "announce", "over"] = "rounds"
        self._last: Broadcast | None = None
        self.released: Release | None = None

    @property
    def vote(self) -> Request:
        """The final release as it is planned, for as many candidates as there may be."""
        others = sum(1.0 / request.noise_scale**2 for request in self.server.plan())
        scale = math.sqrt((1.0 - self._share) / (self._share * others)) if others else 1.0
        return ballot_request(N_CANDIDATES, self._n_clients, scale)

    def plan(self) -> Iterator[Request]:
        """Every request of the run, the vote last."""
        yield from self.server.plan()
        yield self.vote

    def ask(self) -> Ask | None:
        """The algorithm's rounds, then the vote, then what was chosen."""
        if self._stage == "rounds":
            asked = self.server.ask()
            if asked is not None:  # the vote chooses, not what the algorithm would announce
                said = {name: array for name, array in asked.broadcast.arrays.items() if name != CHOSEN}
                self._last = Broadcast(round=asked.broadcast.round, arrays=said)
                return replace(asked, broadcast=self._last)
            self._stage = "vote"
        if self._stage == "vote":
            broadcast = self._broadcast({CANDIDATES: self.candidates})
            return Ask(broadcast=broadcast, request=self._ballots(broadcast))
        if self._stage == "over":
            return None
        return Ask(broadcast=self._broadcast({CHOSEN: self.candidates[self.place]}), request=None)

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the vote for candidates, nothing for the announcement, and what the algorithm asks for in its rounds.

        Raises:
            ConfigurationError: If there are too many candidates, or the algorithm's server can't tell.
        """
        if CANDIDATES in broadcast.arrays:
            return self._ballots(broadcast)
        if LAST_ROUND in broadcast.arrays:
            return None
        if not isinstance(self.server, Requesting):
            raise ConfigurationError(
                f"final='common' on other machines: {type(self.server).__name__} has no request_for(broadcast), so "
                "parties can't tell what a round asks for; give it one"
            )
        return self.server.request_for(broadcast)

    def _ballots(self, broadcast: Broadcast) -> Request:
        units, last = np.asarray(broadcast.arrays[CANDIDATES]), np.asarray(broadcast.arrays.get(LAST_ROUND))
        count = len(units) if units.shape[1:] == (self._n_dims,) else 0
        if not 1 <= count <= N_CANDIDATES or not ((units >= 0.0) & (units <= 1.0)).all():
            raise ConfigurationError(
                f"a vote over candidates of shape {units.shape}; there are 1 to {N_CANDIDATES}, points in the unit "
                f"cube of {self._n_dims} dimensions"
            )
        if last.shape or not np.issubdtype(last.dtype, np.integer):
            raise ConfigurationError(f"a vote after round {last!r}, which is no whole number")
        return ballot_request(count, self._n_clients, self.vote.noise_scale)

    def tell(self, release: Release | None) -> None:
        """Pass on the algorithm's releases; choose by the last one."""
        if self._stage == "rounds":
            self.server.tell(release)
        elif self._stage == "vote":
            self.released, self._stage = release, "announce"
        else:
            self._stage = "over"

    @cached_property
    def candidates(self) -> FloatArray:
        """The candidates, ``(k, n_dims)``, once the rounds are over."""
        return self._proposing.propose(N_CANDIDATES)

    @property
    def place(self) -> int:
        """Which candidate was chosen, once the vote was made."""
        if self.released is None:
            raise ConfigurationError("the vote was not made yet")
        return int(self.released.values[0].argmax())

    def _broadcast(self, said: Arrays) -> Broadcast:
        """A broadcast with the last round's arrays, which clients may need to judge, and new ones."""
        last = Broadcast(round=-1) if self._last is None else self._last
        round_ = last.round + (1 if self._stage == "vote" else 2)
        return Broadcast(round=round_, arrays={**last.arrays, LAST_ROUND: np.array(last.round), **said})


class CommonCohort(AlteredCohort):
    """The private side: the algorithm's clients, who can judge and answer the vote with ballots."""

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act in the algorithm's rounds; answer the vote with ballots ``(n, k)``."""
        arrays = dict(broadcast.arrays)
        if LAST_ROUND not in arrays:
            return self.cohort.respond(broadcast)
        if (units := arrays.pop(CANDIDATES, None)) is None or not isinstance(self.cohort, Judging):
            return np.empty((len(self.clients), 0))
        last = Broadcast(round=int(arrays.pop(LAST_ROUND)), arrays=arrays)
        return ballots(self.cohort.judge(last, np.asarray(units, dtype=np.float64)))


COMMON = "common.json"


@settings(table="vote")
class Vote:
    """How a run's final vote went.

    Attributes:
        candidates: Number of candidates that were voted on.
        place: Which of them was chosen, from 0.
        lead: Its total over the second best's, in standard deviations of the noise between two totals; None without
            noise or with one candidate. Below 2 another candidate may well have had more ballots.
        round: The round of the vote.
    """

    candidates: int
    place: int
    lead: float | None
    round: int

    @property
    def text(self) -> str:
        """Say how clear the vote was."""
        if self.lead is None:
            return "chosen without noise" if self.candidates > 1 else "the only candidate"
        return f"{at_least(self.lead, 2)} standard deviations of noise ahead of the second"


@settings(table="common")
class Common:
    """The setting that a run found for all clients; public and charged.

    Attributes:
        params: Values by name.
        vote: The vote that chose it; None where it follows from the algorithm's own releases.

    Example:
        >>> Common(params={"C": 1.0}, vote=Vote(candidates=16, place=3, lead=1.96, round=21)).text
        'C = 1 (1.9 standard deviations of noise ahead of the second)'
    """

    params: dict[str, Value]
    vote: Vote | None = None

    @property
    def text(self) -> str:
        """The setting in one line."""
        chosen = ", ".join(f"{k} = {v:.4g}" if isinstance(v, float) else f"{k} = {v}" for k, v in self.params.items())
        return f"{chosen} ({'what the releases say' if self.vote is None else self.vote.text})"


def keep_common(announced: Array | None, server: Server, space: Space, directory: Path | None) -> Common | None:
    """Give the common setting that a run announced, and write it down; None where it announced none."""
    if announced is None:
        return None
    vote = None
    if isinstance(server, CommonServer) and (release := server.released) is not None:
        totals, lead = sorted(release.values[0].tolist()), None
        if len(totals) > 1 and release.noise_stddev > 0.0:
            lead = (totals[-1] - totals[-2]) / (math.sqrt(2.0) * release.noise_stddev)
        vote = Vote(candidates=len(totals), place=server.place, lead=lead, round=release.round)
    common = Common(params=space.decode(announced), vote=vote)
    if directory is not None:
        write_json(directory / COMMON, dump_settings(common))
    return common


def common_at_site(folder: Path) -> dict[str, Value] | None:
    """Decode the common setting that a site was told, from its folder of one run; None where it was told none.

    Raises:
        RunError: If what stands there is no point.
    """
    path, facts = folder / COMMON, site_facts(folder)
    unit = np.array(read_json(path).get("unit")) if path.exists() else None
    if unit is not None and not facts.has_point(unit):
        raise RunError(f"{path} holds no point; restore it from a copy")
    return None if unit is None else facts.search_space.decode(unit)
