"""Everything a cohort's clients have evaluated, and what of it their models are made of; private.

The cost of a model grows with the cube of its points. Of more than ``OwnModel.max_points``, ``OwnModel.kept`` says
which: equal parts are those with the largest values and the newest, and the rest are chosen one after the other, each
the farthest from those that were chosen before. Which they are depends on the client's own history alone.
``docs/scale.md`` has the regret of each rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Literal, TypeAlias

import numpy as np
import torch

from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.settings import OwnModel, Part
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Array, Arrays, BoolArray, ClientHistory, Evaluate, FloatArray, IntArray, best_unit
from privbo.protocol.space import Space

INITIAL_ROUND = -1
_EARLIER_ROUND = -2  # before the run
_SHORTER = 1.0 - 1e-12
Failures: TypeAlias = Literal["ignored", "worst"]


class Evaluations:
    """Points and values of n clients, one more of each per query.

    Attributes:
        clients: Global numbers of the clients, ``(n,)``.
        units: Points in the cube, ``(n, t, n_dims)``.
        values: Objective there, ``(n, t)``; NaN where it failed.
        rounds: Round of each query, ``(t,)``; -1 for initial points, -2 for what clients brought along.
        scaled: Whether values are modelled at mean 0 and standard deviation 1, instead of as they come.
    """

    def __init__(
        self, clients: IntArray, evaluate: Evaluate, space: Space, device: torch.device, *, scaled: bool = True
    ) -> None:
        self._evaluate, self._space, self._device, self.scaled = evaluate, space, device, scaled
        self.clients = np.asarray(clients, dtype=np.int64)
        self.units: FloatArray = np.empty((len(self.clients), 0, space.n_dims))
        self.values: FloatArray = np.empty((len(self.clients), 0))
        self.rounds: IntArray = np.empty(0, dtype=np.int64)

    @property
    def n_earlier(self) -> int:
        """Most evaluations that a client brought along; those with fewer have NaN in place of the others."""
        return int((self.rounds == _EARLIER_ROUND).sum())

    def query(self, points: FloatArray, round_: int, *, fixed: bool = False) -> None:
        """Evaluate one point per client, ``(n, n_dims)``; before the first one, take in what clients brought along.

        Args:
            points: That were chosen.
            round_: Of the query.
            fixed: Whether it has to be these, so that clients' own points do not count and nothing is taken in.
        """
        if not fixed:
            if not len(self.rounds):
                self._take_in()
            points = self._evaluate.chosen(self.clients, points, len(self.rounds) - self.n_earlier)
        values = np.asarray(self._evaluate(self.clients, points), dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        self.units = np.concatenate([self.units, points[:, None]], axis=1)
        self.values = np.concatenate([self.values, values[:, None]], axis=1)
        self.rounds = np.append(self.rounds, round_)

    def _take_in(self) -> None:
        """Begin the histories with evaluations from before the run; they never leave a client but through its model."""
        brought = [self._evaluate.earlier(int(client)) for client in self.clients]
        count = max(map(len, brought), default=0)
        middle = self._space.snap(np.full(self._space.n_dims, 0.5))
        self.units = np.tile(middle, (len(self.clients), count, 1))
        self.values = np.full((len(self.clients), count), np.nan)
        self.rounds = np.full(count, _EARLIER_ROUND, dtype=np.int64)
        for row, evaluations in enumerate(brought):
            for place, (unit, value) in enumerate(evaluations):
                self.units[row, place], self.values[row, place] = unit, value

    def before(self, rows: IntArray, round_: int) -> FloatArray:
        """Points of some clients of the rounds before ``round_``, ``(n, t, n_dims)``."""
        return np.asarray(self.units[rows][:, self.rounds < round_])

    def observations(
        self, rows: IntArray, round_: int, failures: Failures = "ignored", *, earlier: bool = True
    ) -> Observations:
        """Histories of some clients up to and including a round, on the scale on which they are modelled.

        Args:
            rows: Which clients.
            round_: The last round that counts.
            failures: ``"worst"`` gives a trial that failed the worst value that its client has seen, if it has one.
            earlier: Whether what was evaluated before the run counts.
        """
        before = (self.rounds <= round_) & (earlier | (self.rounds != _EARLIER_ROUND))
        units, values = self.units[rows][:, before], self.values[rows][:, before]
        if failures == "worst":
            worst = np.where(np.isfinite(values), values, np.inf).min(axis=1, initial=np.inf, keepdims=True)
            failed = ~np.isfinite(values) & (self.rounds[before] != _EARLIER_ROUND) & np.isfinite(worst)
            values = np.where(failed, worst, values)
        mask = np.isfinite(values)
        modelled, divisor = np.where(mask, values, 0.0), np.ones(len(values))
        if self.scaled:
            modelled, divisor = standardise(values, mask)
        return Observations(
            embedded=self._tensor(self._space.embed(units)),
            values=self._tensor(modelled),
            mask=torch.as_tensor(mask, device=self._device),
            scale=self._tensor(divisor),
        )

    def lacking(self, round_: int, failures: Failures = "ignored") -> BoolArray:
        """Clients whose evaluations of a round all failed, ``(n,)``; those of round 0 are the initial ones.

        ``failures="worst"`` makes a value of each that failed: clients that know none up to the round lack it.
        """
        latest = self.rounds == (INITIAL_ROUND if round_ == 0 else round_)
        some = self.rounds <= round_ if failures == "worst" else latest
        return np.asarray(~np.isfinite(self.values[:, some]).any(axis=1))

    def snapshot(self) -> dict[str, Array]:
        """Copies of everything."""
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
        """Every evaluation; the point that was best on average is recommended (NaN where there is none)."""
        recommended = np.full((len(self.clients), self._space.n_dims), np.nan)
        for row in np.flatnonzero(np.isfinite(self.values).any(axis=1)):
            recommended[row] = best_unit(self.units[row], self.values[row])
        return ClientHistory(
            units=self.units.copy(),
            values=self.values.copy(),
            rounds=np.maximum(self.rounds, INITIAL_ROUND),
            recommended=recommended,
            calls=np.tile((self.rounds != _EARLIER_ROUND).astype(np.int64), (len(self.clients), 1)),
        )

    def _tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)


def standardise(values: FloatArray, mask: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Values per row at mean 0 and standard deviation 1, zero where masked, and what they were divided by, ``(n,)``.

    Constant rows become zero, divided by one.
    """
    # In one piece: the order of a row's sum follows the memory, and that of a slice depends on how many rows there are.
    values, mask = np.ascontiguousarray(values), np.ascontiguousarray(mask)
    count = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    filled = np.where(mask, values, 0.0)
    centred = np.where(mask, filled - filled.sum(axis=1, keepdims=True) / count, 0.0)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count)
    magnitude = np.abs(filled).max(axis=1, keepdims=True, initial=0.0)
    negligible = spread <= 1e-12 * magnitude
    scale = np.where(negligible | (spread == 0.0), 1.0, spread)
    return np.where(negligible, 0.0, centred / scale), scale[:, 0]


def of_length_one(rows: FloatArray) -> FloatArray:
    """Rows divided by their lengths; zeros stay.

    They are slightly shorter than 1, so that clipping, whose bound allows for rounding, does not change them.
    """
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows * (_SHORTER / np.where(lengths > 0.0, lengths, 1.0)))


def narrowed(observations: Observations, units: FloatArray, own: OwnModel) -> tuple[Observations, FloatArray]:
    """Give the part of clients' histories that is modelled, at most ``own.max_points`` points of each.

    Args:
        observations: Histories of n clients of t points.
        units: The points in the cube, ``(n, t, n_dims)``.
        own: How many, and which.
    """
    if own.max_points is None or units.shape[1] <= own.max_points:
        return observations, units
    values = np.where(observations.mask.cpu().numpy(), observations.values.cpu().numpy(), -np.inf)
    chosen = kept_points(units, values, own.max_points, own.kept)
    index = torch.as_tensor(chosen, device=observations.values.device)
    wide = index[..., None].expand(-1, -1, observations.embedded.shape[-1])
    narrow = dataclasses.replace(
        observations,
        embedded=observations.embedded.gather(1, wide),
        values=observations.values.gather(1, index),
        mask=observations.mask.gather(1, index),
    )
    return narrow, np.take_along_axis(units, chosen[..., None], axis=1)


def kept_points(units: FloatArray, values: FloatArray, count: int, parts: Collection[Part]) -> IntArray:
    """Choose points of every client, in the order in which they were evaluated, ``(n, count)``.

    Args:
        units: ``(n, t, n_dims)`` with t > ``count``.
        values: ``(n, t)``; minus infinity where there is none, which is chosen last.
        count: How many.
        parts: Rules, of equal parts; a point that two of them name leaves room for one more that is spread.
    """
    n, t = values.shape
    rows, known = np.arange(n), values > -np.inf
    chosen = np.zeros((n, t), dtype=bool)
    orders = {"best": values, "newest": np.where(known, np.arange(t), -1)}
    for part in parts:
        if part in orders:
            top = np.argsort(-orders[part], axis=1, kind="stable")[:, : count // len(parts)]
            np.put_along_axis(chosen, top, values=True, axis=1)
    distances = np.full((n, t), np.inf)
    first = np.argsort(~chosen, axis=1, kind="stable")
    counts = chosen.sum(axis=1)
    for column in range(counts.max(initial=0) if (counts < count).any() else 0):
        has = chosen[rows, first[:, column]]
        _nearer(distances, has, units, first[:, column])
    while (short := chosen.sum(axis=1) < count).any():
        score = np.where(chosen, -2.0, np.where(known, distances, -1.0))
        place = score.argmax(axis=1)
        chosen[rows[short], place[short]] = True
        _nearer(distances, short, units, place)
    return np.asarray(np.nonzero(chosen)[1].reshape(n, count))


def _nearer(distances: FloatArray, some: BoolArray, units: FloatArray, place: IntArray) -> None:
    """Lower some clients' squared distances to their chosen points by one more of these."""
    points = units[some, place[some]]
    squares = np.zeros((len(points), units.shape[1]))
    for dim in range(units.shape[2]):  # one coordinate after another: no sum depends on how many clients there are
        squares += (units[some, :, dim] - points[:, None, dim]) ** 2
    distances[some] = np.minimum(distances[some], squares)
