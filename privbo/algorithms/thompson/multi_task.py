"""Few sites with many records each: every site's first points are released, then each goes on by its own values.

The public side is here, the private side in ``sites``, the posterior in ``releases``. Rounds, for a run of T rounds:

    round 0      sites evaluate the front, a public design for each; with the release: their noisy means there
    round t      each site acts on its own exact values, with all releases as prior mean

No point depends on a value that was not released before that point itself is: the front is public, and what a site
chooses after it stays with the site.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from privbo.protocol.common import CHOSEN, ReleaseWhen
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Cohort, Evaluate, FloatArray, IntArray, Release, Request, Setting
from privbo.protocol.settings import settings

_MOST = 64  # points of a front
_LARGEST_NOISE = 0.04  # in a site's mean, of the range
_FRONT, _TOLD = (2, 4), 48  # least and most points of a front by default, and what all sites need release together


@settings(table="algorithm")
class MultiTask:
    """Private federated Bayesian optimisation by few sites that hide records: a multi-task Gaussian process.

    Every site evaluates a few points of a public design, and releases the sums of its records' clipped scores there.
    What all releases lead to expect of a surface is the prior mean of every site's own model, in units of the scores:
    releases that are noise alone tell of a flat surface. From then on a site acts as a client of ``SharedPrior`` does
    alone, by log expected improvement on its own exact values. Its own values decide how much the prior is worth.
    Releases that tell too little of a surface are left out.

    | In a round | what leaves a site | guarantee |
    |---|---|---|
    | 0 | noisy sums of its records' scores at its public points | (epsilon, delta) of the run's plan, for one record |
    | later, and of ``local()`` | nothing | nothing is released or charged |
    | of any kind | no point after the front, no exact value, no model | they stay in memory and in ``private/`` |

    A site's own scores can be read up to the noise: hospitals are not hidden, patients are. The setting that the
    releases expect to be best on average over all sites is ``Record.common``; it costs nothing more. With
    ``goal="common"`` it is all that is asked for: the front holds all evaluations but the last, which is the common
    setting.

    .. versionadded:: 0.3.0

    Attributes:
        goal: ``"own"``: a setting of its own for every site; ``"common"``: one for all, by as many evaluations.
        front: Points that every site evaluates first and releases; None is as many as give 48 of all sites together,
            two at least and four at most; with ``goal="common"`` it is all evaluations but one, and 64 at most.
        release_when: ``"useful"`` makes no release, and charges nothing, where the noise in the mean of a site of
            median size would have a standard deviation above .04 of ``score_range``; ``"always"`` makes it.
        is_shared: Whether anything is released.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import numpy as np
        >>> import privbo as pb
        >>> def scores(client, params):
        ...     return np.full(900, 1.0 - (params["dose"] - 0.4 - client / 100) ** 2)
        >>> problem = pb.Problem(
        ...     space={"dose": pb.Real(0, 1)}, objective=scores, n_clients=12, n_records=[900] * 12
        ... )
        >>> privacy = pb.Privacy(epsilon=1.0, delta=1e-6, unit="record", protects="records")
        >>> pb.plan(problem, privacy=privacy, rounds=18).releases
        1
        >>> pb.plan(problem, privacy=dataclasses.replace(privacy, epsilon=0.1), rounds=18).releases
        0
    """

    answers_together: ClassVar[bool] = True
    caveat: ClassVar[str | None] = None
    is_certified: ClassVar[bool] = False  # no statement about the optimum rests on the clipping norm
    type: Literal["multi-task"] = field(default="multi-task", repr=False)
    goal: Literal["own", "common"] = "own"
    front: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    release_when: ReleaseWhen = "useful"
    is_shared: bool = True

    def local(self) -> MultiTask:
        """Give the same sites with as many evaluations and nothing shared; their front is that of ``goal="own"``."""
        return dataclasses.replace(self, is_shared=False, goal="own")

    def least_signal_to_noise(self, setting: Setting) -> float:
        """Give the ratio at which noise in the mean of a site of median size is .04 of the range.

        Settings often differ by a tenth of it. The largest sums are those of the largest site, half the range a record.
        """
        counts = (1,) if setting.records is None else setting.records.counts
        return 0.5 / _LARGEST_NOISE * max(counts) / statistics.median(counts)

    def n_front(self, setting: Setting) -> int:
        """Give the number of points of every site's front, by public numbers."""
        low, high = _FRONT
        alone = max(low, min(high, _TOLD // setting.n_clients))
        return self.front or (alone if self.goal == "own" else min(alone + setting.rounds - 1, _MOST))

    def calls_per_client(self, setting: Setting) -> int:
        """Give the calls of the objective by one site: its front, and one a round."""
        return self.n_front(setting) + self.within(setting).rounds

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts, with one round after the front where one common setting is asked for."""
        return setting if self.goal == "own" else setting.at_most(1)

    def request(self, setting: Setting) -> Request | None:
        """Give the one request of a run; None where nothing is shared.

        Raises:
            ConfigurationError: If a record is not the unit of privacy.
        """
        if not self.is_shared:
            return None
        if setting.records is None or not (setting.unit == "record" or setting.is_exact):
            raise ConfigurationError(
                f"MultiTask hides records, and privacy.unit={setting.unit!r}, problem.n_records "
                f"{'is missing' if setting.records is None else 'is there'}; state n_records and "
                "privacy.unit='record', or use SharedPrior() to hide clients"
            )
        return setting.records.request(self.n_front(setting))

    def server(self, setting: Setting) -> MultiTaskServer:
        """Make the public side."""
        return MultiTaskServer(self, setting)

    def cohort(
        self,
        setting: Setting,
        *,
        clients: IntArray,
        evaluate: Evaluate,
        seed: int,
    ) -> Cohort:
        """Make the private side for ``clients``."""
        from privbo.algorithms.thompson.sites import Sites  # loads torch, which the public side does not

        shared = self.request(setting) is not None
        played = self if shared else self.local()
        return Sites(
            played.within(setting),
            played.n_front(setting),
            is_shared=shared,
            is_common=played.goal == "common",
            clients=clients,
            evaluate=evaluate,
            seed=seed,
        )


class MultiTaskServer:
    """The front in round 0, and its release as every site's noisy means in all rounds after it."""

    def __init__(self, algorithm: MultiTask, setting: Setting) -> None:
        self._round, self._request = 0, algorithm.request(setting)
        played = algorithm if self._request is not None else algorithm.local()
        self._setting, self._n_front = played.within(setting), played.n_front(setting)
        self._released: Release | None = None

    def plan(self) -> Iterator[Request]:
        """The one request of the run, if there is one."""
        return iter(() if self._request is None else (self._request,))

    def ask(self) -> Ask | None:
        """The current round; None after the last."""
        if self._round > self._setting.rounds:
            return None
        broadcast, arrays = Broadcast(round=self._round), {}
        if self._released is not None and self._setting.records is not None:
            counts = np.array(self._setting.records.counts, dtype=np.float64)
            means = self._setting.records.middle + self._released.values / counts[:, None]
            arrays = {"means": means, "noise_stddev": self._released.noise_stddev / counts}
            if self._round == self._setting.rounds:
                arrays[CHOSEN] = self._best(**arrays)
            broadcast = Broadcast(round=self._round, arrays=arrays)
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def _best(self, means: FloatArray, noise_stddev: FloatArray) -> FloatArray:
        """The setting that is expected to be best on average over all sites."""
        from privbo.algorithms.thompson.releases import Posterior, Releases, front  # loads parts of scipy

        setting = self._setting
        points = front(setting, np.arange(setting.n_clients), self._n_front)
        return Posterior(setting.space, Releases.of_front(points, means, noise_stddev)).best()

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request of a broadcast's round."""
        return self._request if broadcast.round == 0 else None

    def tell(self, release: Release | None) -> None:
        """Take the release of round 0, and move on.

        Raises:
            ConfigurationError: If the round ends otherwise than planned.
        """
        planned = self._round == 0 and self._request is not None
        if (release is not None) != planned:
            raise ConfigurationError(
                f"round {self._round} {'ends with' if planned else 'has no'} release, told {release!r}"
            )
        self._released, self._round = release or self._released, self._round + 1
