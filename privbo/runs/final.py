"""A run that ends with a common setting: any algorithm that names public candidates, and one release more.

Rounds, after the algorithm's own:

    vote        candidates go out, every client answers with its ballot, one noisy mean of ballots is released
    announce    the chosen candidate goes out to everybody; nothing is asked for

The vote is planned, charged and drawn as every other release. Its share of the run's squared budget is a setting:
Gaussian differential privacy adds in squares, so with share f of it and A the sum of the other releases' 1 / scale^2,
the vote's noise multiplier is sqrt((1 - f) / (f A)) times the run's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

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
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    Broadcast,
    ClientHistory,
    Cohort,
    Evaluate,
    FloatArray,
    Foregoing,
    IntArray,
    Release,
    Request,
    Requesting,
    Server,
    Setting,
    answers_together,
    takes_points,
)


@dataclass(frozen=True, kw_only=True)
class WithCommon:
    """An algorithm whose runs end with a common setting.

    Attributes:
        algorithm: What is run.
        share: Share of the squared budget that the vote gets, in (0, 1).
    """

    algorithm: Algorithm
    share: float

    @property
    def caveat(self) -> str | None:
        """The algorithm's own."""
        return self.algorithm.caveat

    @property
    def is_certified(self) -> bool:
        """Whether the algorithm's promise rests on fixed clipping norms; the vote changes nothing about it."""
        return self.algorithm.is_certified

    @property
    def answers_together(self) -> bool:
        """Whether one cohort may answer for all clients, as for the algorithm alone."""
        return answers_together(self.algorithm)

    @property
    def takes_points(self) -> bool:
        """Whether clients take points that are given to them, as for the algorithm alone."""
        return takes_points(self.algorithm)

    def local(self) -> Algorithm:
        """The algorithm's own control, which shares nothing and therefore chooses nothing in common."""
        return self.algorithm.local()

    def server(self, setting: Setting) -> CommonServer:
        """Make the public side.

        Raises:
            ConfigurationError: If the algorithm names no candidates, or one reward is the unit of privacy.
        """
        return CommonServer(self.algorithm.server(setting), setting, self.share)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``.

        Raises:
            ConfigurationError: If the algorithm's clients can't judge candidates.
        """
        inside = self.algorithm.cohort(setting, clients=clients, evaluate=evaluate, seed=seed)
        if not isinstance(inside, Judging):
            raise ConfigurationError(
                f"final='common': clients of {type(self.algorithm).__name__} can't judge candidates; give its cohort a "
                "judge(broadcast, units)"
            )
        return CommonCohort(cohort=inside)


class CommonServer:
    """The public side: the algorithm's server, then the vote, then the announcement."""

    def __init__(self, server: Server, setting: Setting, share: float) -> None:
        if setting.unit != "client":
            raise ConfigurationError(
                "final='common': a ballot rests on all rewards of a client, and no reward may enter two releases; set "
                "privacy.unit='client' or drop final"
            )
        if not isinstance(server, Proposing):
            raise ConfigurationError(
                "final='common': this algorithm names no public candidates; use shared-prior, dp-fts-de, fed-pne, "
                "pf-pne or parallel, give its server a propose(count), or drop final"
            )
        self._server, self._proposing = server, server
        self._n_clients, self._share = setting.n_clients, share
        self._stage: Literal["rounds", "vote", "announce", "over"] = "rounds"
        self._last: Broadcast | None = None
        self._candidates: FloatArray | None = None
        self._released: Release | None = None

    @property
    def vote(self) -> Request:
        """The final release as it is planned, for as many candidates as there may be."""
        others = sum(1.0 / request.noise_scale**2 for request in self._server.plan())
        scale = math.sqrt((1.0 - self._share) / (self._share * others)) if others else 1.0
        return ballot_request(N_CANDIDATES, self._n_clients, scale)

    def rounds(self) -> Iterator[Request]:
        """Every request before the vote."""
        return self._server.plan()

    def plan(self) -> Iterator[Request]:
        """Every request of the run, the vote last."""
        yield from self.rounds()
        yield self.vote

    def foregone(self) -> Iterator[Request]:
        """Requests that the algorithm gave up."""
        return self._server.foregone() if isinstance(self._server, Foregoing) else iter(())

    def ask(self) -> Ask | None:
        """The algorithm's rounds, then the vote, then what was chosen."""
        if self._stage == "rounds":
            asked = self._server.ask()
            if asked is not None:
                self._last = asked.broadcast
                return asked
            self._stage = "vote"
        match self._stage:
            case "vote":
                broadcast = self._broadcast({CANDIDATES: self.candidates})
                return Ask(broadcast=broadcast, request=self._ballots(broadcast))
            case "announce":
                return Ask(broadcast=self._broadcast({CHOSEN: self.candidates[self.place]}), request=None)
            case _:
                return None

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the vote for candidates, nothing for the announcement, and what the algorithm asks for in its rounds.

        Raises:
            ConfigurationError: If there are too many candidates, or the algorithm's server can't tell.
        """
        if CANDIDATES in broadcast.arrays:
            return self._ballots(broadcast)
        if LAST_ROUND in broadcast.arrays:
            return None
        if not isinstance(self._server, Requesting):
            raise ConfigurationError(
                f"final='common' on other machines: {type(self._server).__name__} has no request_for(broadcast), so "
                "parties can't tell what a round asks for; give it one"
            )
        return self._server.request_for(broadcast)

    def _ballots(self, broadcast: Broadcast) -> Request:
        count = len(broadcast.arrays[CANDIDATES])
        if not 1 <= count <= N_CANDIDATES:
            raise ConfigurationError(f"a vote over {count} candidates; there are 1 to {N_CANDIDATES}")
        return ballot_request(count, self._n_clients, self.vote.noise_scale)

    def tell(self, release: Release | None) -> None:
        """Pass on the algorithm's releases; choose by the last one."""
        match self._stage:
            case "rounds":
                self._server.tell(release)
            case "vote":
                self._released, self._stage = release, "announce"
            case _:
                self._stage = "over"

    @property
    def candidates(self) -> FloatArray:
        """The candidates, ``(k, n_dims)``, once the rounds are over."""
        if self._candidates is None:
            self._candidates = self._proposing.propose(N_CANDIDATES)
        return self._candidates

    @property
    def released(self) -> Release | None:
        """The vote, once it was made."""
        return self._released

    @property
    def place(self) -> int:
        """Which candidate was chosen, once the vote was made."""
        if self._released is None:
            raise ConfigurationError("the vote was not made yet")
        return int(self._released.values[0].argmax())

    def _broadcast(self, said: Mapping[str, npt.NDArray[np.generic]]) -> Broadcast:
        """A broadcast with the last round's arrays, which clients may need to judge, and new ones."""
        last = Broadcast(round=-1) if self._last is None else self._last
        round_ = last.round + (1 if self._stage == "vote" else 2)
        return Broadcast(round=round_, arrays={**last.arrays, LAST_ROUND: np.array(last.round), **said})


@dataclass(frozen=True, kw_only=True)
class CommonCohort:
    """The private side: the algorithm's clients, who answer the vote with ballots.

    Attributes:
        cohort: The clients, who can judge.
    """

    cohort: Cohort

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act in the algorithm's rounds; answer the vote with ballots ``(n, k)``."""
        arrays = dict(broadcast.arrays)
        if LAST_ROUND not in arrays:
            return self.cohort.respond(broadcast)
        if (units := arrays.pop(CANDIDATES, None)) is None or not isinstance(self.cohort, Judging):
            return np.empty((len(self.clients), 0))
        last = Broadcast(round=int(arrays.pop(LAST_ROUND)), arrays=arrays)
        return ballots(self.cohort.judge(last, np.asarray(units, dtype=np.float64)))

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """As the algorithm's."""
        return self.cohort.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """As the algorithm's."""
        self.cohort.restore(snapshot)

    def history(self) -> ClientHistory:
        """As the algorithm's."""
        return self.cohort.history()
