"""The private side of the multi-task process: sites that release their front, and go on by their own exact values."""

from __future__ import annotations

import numpy as np

from privbo.algorithms.multitask.posterior import Posterior, Prior, Releases, alone, front, propose
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Arrays, Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting

INITIAL_ROUND = -1


class Sites:
    """Sites that keep what they evaluated.

    A site's points after the front are functions of its own values and of all releases; they are never released.

    Args:
        setting: Of the run.
        n_front: Points of every site's front.
        is_shared: Whether the front is released.
        is_common: Whether the setting that is announced is what sites evaluate after the front.
        clients: Which sites.
        evaluate: Their objectives.

    Attributes:
        clients: Global numbers of the sites, ``(n,)``.
        units: Points in the cube, ``(n, t, n_dims)``.
        values: Mean scores there, ``(n, t)``; NaN where an evaluation failed.
        rounds: Round of each evaluation, ``(t,)``; -1 for the front.
    """

    def __init__(
        self,
        setting: Setting,
        n_front: int,
        *,
        is_shared: bool,
        is_common: bool,
        clients: IntArray,
        evaluate: Evaluate,
    ) -> None:
        self._setting, self._evaluate, self.clients = setting, evaluate, np.asarray(clients, dtype=np.int64)
        self._records, self._is_common = setting.records if is_shared else None, is_common
        self._front = front(setting.space, setting.n_clients, n_front, setting.public_seed)
        self.units: FloatArray = np.empty((len(self.clients), 0, setting.space.n_dims))
        self.values: FloatArray = np.empty((len(self.clients), 0))
        self.rounds: IntArray = np.empty(0, dtype=np.int64)
        self._priors: tuple[Prior, ...] = ()

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Evaluate the front, or one point per site, unless this round was answered before.

        Returns:
            In round 0 the centred sums of every site's scores at its front, ``(n, k)``, those of a failed evaluation
            as if all its records had the lowest score; else ``(n, 0)``.

        Raises:
            ConfigurationError: If the broadcast has a wrong shape.
        """
        if not len(self.rounds):
            for points in self._front[self.clients].swapaxes(0, 1):
                self._query(points, INITIAL_ROUND)
        if broadcast.round > max(0, self.rounds[-1]):
            self._query(self._announced(broadcast) if self._is_common else self._own(broadcast), broadcast.round)
        if broadcast.round > 0 or self._records is None:
            return np.empty((len(self.clients), 0))
        counts = np.array(self._records.counts, dtype=np.float64)[self.clients]
        return np.asarray(counts[:, None] * (self._known()[:, self.rounds == INITIAL_ROUND] - self._records.middle))

    def _own(self, broadcast: Broadcast) -> FloatArray:
        """Every site's next point by its own values, ``(n, n_dims)``."""
        known, priors = self._known(), self._of(broadcast)
        return np.array([_next(*site) for site in zip(priors, self.units, known, strict=True)])

    def _announced(self, broadcast: Broadcast) -> FloatArray:
        """The common setting, once for every site, ``(n, n_dims)``."""
        chosen = np.asarray(broadcast.arrays.get(CHOSEN, ()), dtype=np.float64)
        if chosen.shape != (self._setting.space.n_dims,):
            raise ConfigurationError(
                f"round {broadcast.round}: the common setting has shape {chosen.shape} and must have "
                f"{(self._setting.space.n_dims,)}"
            )
        return np.tile(chosen, (len(self.clients), 1))

    def _known(self) -> FloatArray:
        """Values with the lowest score, or the lowest that its site has seen, in place of failed evaluations."""
        low = np.where(np.isfinite(self.values), self.values, np.inf).min(axis=1, keepdims=True)
        if self._records is not None:
            low = np.full_like(low, self._records.low)
        return np.where(np.isfinite(self.values), self.values, np.where(np.isfinite(low), low, 0.0))

    def _of(self, broadcast: Broadcast) -> tuple[Prior, ...]:
        """What the others' releases say to every site; made once, since all of them come in one round."""
        if not self._priors and self._records is None:
            self._priors = (alone(self._setting.space),) * len(self.clients)
        elif not self._priors:
            means, noise = (np.asarray(broadcast.arrays.get(name, ())) for name in ("means", "noise_stddev"))
            shape = self._front.shape[:2]
            if means.shape != shape or noise.shape != shape[:1] or not (noise >= 0.0).all():
                raise ConfigurationError(
                    f"round {broadcast.round}: means of shape {means.shape} and noise_stddev of shape {noise.shape} "
                    f"must have shapes {shape} and {shape[:1]}"
                )
            posterior = Posterior(self._setting.space, Releases.of_front(self._front, means, noise))
            self._priors = tuple(posterior.of(int(site)) for site in self.clients)
        return self._priors

    def _query(self, points: FloatArray, round_: int) -> None:
        values = np.asarray(self._evaluate(self.clients, points), dtype=np.float64)
        self.units = np.concatenate([self.units, points[:, None]], axis=1)
        self.values = np.concatenate([self.values, np.where(np.isfinite(values), values, np.nan)[:, None]], axis=1)
        self.rounds = np.append(self.rounds, round_)

    def snapshot(self) -> Arrays:
        """Evaluations; private."""
        return {name: getattr(self, name).copy() for name in ("clients", "units", "values", "rounds")}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``.

        Raises:
            ConfigurationError: If it belongs to other clients.
        """
        if not np.array_equal(snapshot["clients"], self.clients):
            raise ConfigurationError("the snapshot belongs to other clients than this cohort's")
        self.units = np.array(snapshot["units"], dtype=np.float64)
        self.values = np.array(snapshot["values"], dtype=np.float64)
        self.rounds = np.array(snapshot["rounds"], dtype=np.int64)

    def history(self) -> ClientHistory:
        """Every evaluation; the best evaluated point is recommended (NaN where there is none)."""
        recommended = np.full((len(self.clients), self._setting.space.n_dims), np.nan)
        known = np.isfinite(self.values).any(axis=1)
        if known.any():
            recommended[known] = self.units[known, np.nanargmax(self.values[known], axis=1)]
        return ClientHistory(
            units=self.units.copy(), values=self.values.copy(), rounds=self.rounds.copy(), recommended=recommended
        )


def _next(prior: Prior, units: FloatArray, values: FloatArray) -> FloatArray:
    """A site's next point; where its values leave no posterior, a public one, so that no data can end a run."""
    try:
        return propose(prior, units, values)
    except np.linalg.LinAlgError:
        return np.asarray(prior.net[len(values) % len(prior.net)])
