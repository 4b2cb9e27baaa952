"""Few sites with many records each: every site's first points are released, then each goes on by its own values.

The public side is here, the private side in ``clients``, the posterior in ``releases``. Rounds, for a run of T rounds:

    round 0      sites evaluate the front, a public design for each; with the release: their noisy means there
    round t      each site acts on its own exact values, with all releases as prior mean

For one common setting a second release takes the place of the own values:

    round 1      all sites evaluate the points that the releases find likely to be best; with the release: their means
    round 2      all sites evaluate the setting that the releases expect to be best

No point depends on a value that was not released before that point itself is: the front is public, the points of the
second release follow from the first, and what a site chooses by itself stays with the site.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from privbo.algorithms.thompson.servers import RoundServer
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import CHOSEN, ReleaseWhen
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import (
    Arrays,
    Cohort,
    Evaluate,
    FloatArray,
    IntArray,
    Records,
    Release,
    Request,
    Setting,
)
from privbo.protocol.settings import settings

if TYPE_CHECKING:
    from privbo.algorithms.thompson.releases import Posterior  # loads parts of scipy

_MOST = 64  # points of a front
_POINTS = "points"  # of the second release, in broadcasts
_LARGEST_NOISE = 0.04  # in a site's mean, of the range
_FRONT, _TOLD = (2, 4), 48  # least and most points of a front by default, and what all sites need release together
_SECOND_SHARE = 5, 11  # of the points that are released for a common setting: chosen by the release of the others


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
    | 1, with ``goal="common"`` | the same at points that follow from the first release | within the same plan |
    | later, and of ``local()`` | nothing | nothing is released or charged |
    | of any kind | no point after the front, no exact value, no model | they stay in memory and in ``private/`` |

    A site's own scores can be read up to the noise: hospitals are not hidden, patients are. The setting that the
    releases expect to be best on average over all sites is ``Record.common``; it costs nothing more. With
    ``goal="common"`` it is all that is asked for: all evaluations but the last are released, which is the common
    setting. All sites evaluate five elevenths of them at the same points, which the release of the others finds
    likeliest to be best.

    .. versionadded:: 0.3.0

    Attributes:
        goal: ``"own"``: a setting of its own for every site; ``"common"``: one for all, by as many evaluations.
        front: Points that every site evaluates and releases; None is as many as give 48 of all sites together, two at
            least and four at most; with ``goal="common"`` it is all evaluations but one, and 64 at most.
        release_when: ``"useful"`` makes none of the releases, and charges nothing, where the noise in the mean of a
            site of median size would have a standard deviation above .04 of ``score_range``; ``"always"`` makes all.
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
        A plan adds up the squares of all releases, whose noise is the same.
        """
        counts = (1,) if setting.records is None else setting.records.counts
        of_one = 0.5 / _LARGEST_NOISE * max(counts) / statistics.median(counts)
        return math.sqrt(len(self.n_points(setting))) * of_one

    def n_points(self, setting: Setting) -> tuple[int, ...]:
        """Give the number of points in each release of a site, by public numbers: its front, and any second one."""
        low, high = _FRONT
        alone = max(low, min(high, _TOLD // setting.n_clients))
        count = self.front or (alone if self.goal == "own" else min(alone + setting.rounds - 1, _MOST))
        share, whole = _SECOND_SHARE
        second = share * count // whole if self.goal == "common" and setting.rounds > 1 else 0
        return (count - second, second) if second else (count,)

    def calls_per_client(self, setting: Setting) -> int:
        """Give the calls of the objective by one site: what it releases, and one a round without a release."""
        points = self.n_points(setting)
        return sum(points) + self.within(setting).rounds - len(points) + 1

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts, with one round after the releases where one common setting is asked for."""
        return setting if self.goal == "own" else setting.at_most(len(self.n_points(setting)))

    def requests(self, setting: Setting) -> tuple[Request, ...]:
        """Give the requests of a run, whose noise in every mean is the same; none where nothing is shared.

        Raises:
            ConfigurationError: If a record is not the unit of privacy.
        """
        if not self.is_shared:
            return ()
        if setting.records is None or not (setting.unit == "record" or setting.is_exact):
            raise ConfigurationError(
                f"MultiTask hides records, and privacy.unit={setting.unit!r}, problem.n_records "
                f"{'is missing' if setting.records is None else 'is there'}; state n_records and "
                "privacy.unit='record', or use SharedPrior() to hide clients"
            )
        points = self.n_points(setting)
        asked = ((setting.records.request(count), math.sqrt(sum(points) / count)) for count in points)
        return tuple(dataclasses.replace(request, noise_scale=scale) for request, scale in asked)

    def server(self, setting: Setting) -> MultiTaskServer:
        """Make the public side."""
        return MultiTaskServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``."""
        from privbo.algorithms.thompson.clients import Sites  # loads torch, which the public side does not

        shared = bool(self.requests(setting))
        played = self if shared else self.local()
        return Sites(
            played.within(setting),
            played.n_points(setting),
            is_shared=shared,
            is_common=played.goal == "common",
            clients=clients,
            evaluate=evaluate,
            seed=seed,
        )


class MultiTaskServer(RoundServer):
    """The front in round 0, its release as every site's noisy means after it, or a second release of one common design.

    With ``goal="common"`` the points of the second release are announced in round 1, and the setting in the last one.

    Attributes:
        announced: The points of the second release, once they are; another machine's arithmetic could find others.
    """

    def __init__(self, algorithm: MultiTask, setting: Setting) -> None:
        self._requests = algorithm.requests(setting)
        played = algorithm if self._requests else algorithm.local()
        self._setting, self._n_points = played.within(setting), played.n_points(setting)
        super().__init__(self._setting.rounds)
        self._is_common = played.goal == "common"
        self._released: list[Release] = []
        self.announced: dict[str, FloatArray] = {}

    def _arrays(self) -> Arrays:
        """What a round after the first release tells sites."""
        if not self._released:
            return {}
        is_last = self._round == self._setting.rounds
        if self._is_common:
            return (
                {CHOSEN: self._posterior(len(self._released)).best()} if is_last else {_POINTS: self._second_points()}
            )
        means, noise = self._means(1)
        told = {"means": means, "noise_stddev": noise}
        return told | ({CHOSEN: self._posterior(1).best()} if is_last else {})

    def _means(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Noisy means of the first releases, and the deviation of the noise in each site's, the same in all of them."""
        records = cast("Records", self._setting.records)
        sums, counts = np.concatenate([release.values for release in self._released[:count]], axis=1), records.counts
        by = np.array(counts, dtype=np.float64)
        return records.middle + sums / by[:, None], self._released[0].noise_stddev / by

    def _posterior(self, count: int) -> Posterior:
        """What the first releases say."""
        from privbo.algorithms.thompson.releases import Posterior, Releases, front  # loads parts of scipy

        setting = self._setting
        points = front(setting, np.arange(setting.n_clients), self._n_points[0])
        if count > 1:
            points = np.concatenate([points, np.tile(self._second_points(), (setting.n_clients, 1, 1))], axis=1)
        return Posterior(setting.space, Releases.of_front(points, *self._means(count)))

    def _second_points(self) -> FloatArray:
        """The points of the second release, ``(k, n_dims)``: those that were announced, found once."""
        if _POINTS not in self.announced:
            stream = public_stream(self._setting.public_seed, Stream.CANDIDATES, 1)
            self.announced[_POINTS] = self._posterior(1).likely_best(self._n_points[1], stream)
        return self.announced[_POINTS]

    def _request(self, round_: int) -> Request | None:
        return self._requests[round_] if round_ < len(self._requests) else None

    def _take(self, release: Release | None) -> None:
        self._released += [] if release is None else [release]
