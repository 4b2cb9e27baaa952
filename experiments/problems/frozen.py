"""Families of problems that are set aside by digest: tables of every site's surface, made once and kept in a cache.

A site's surface is the mean score of the records that it holds at every point of a grid. Half of what is said of an
algorithm rests on families that nobody looked at before: a family's digest is committed before, and a test holds it.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

import privbo as pb
from experiments.problems.data import cache_folder
from experiments.problems.model_scores import Halves, load
from experiments.problems.surfaces import Surfaces, tabulated
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space
from privbo.runs.sources import load_function

MOST_RECORDS = 5000
RECORDS = 400  # of a client
Kind: TypeAlias = Literal["models", "ridge", "alarms", "categories", "steps", "cliffs"]
# Scores of a site's records at all points, (n_points, n_records), from the site's stream and its shape of grid; NaN at
# points where a trial fails.
Site: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A problem of many sites.

    Attributes:
        kind: What its surfaces are like.
        frozen: Whether it was set aside for the report: nothing is chosen by looking at it.
        grid: Number of levels by parameter; texts are choices without order.
        site: See ``Site``.
    """

    kind: Kind
    frozen: bool
    grid: dict[str, int | tuple[str, ...]]
    site: Site

    @property
    def shape(self) -> tuple[int, ...]:
        """Levels of every parameter."""
        return tuple(levels if isinstance(levels, int) else len(levels) for levels in self.grid.values())

    @property
    def space(self) -> Space:
        """Levels as integers, choices as categories."""
        return Space({
            name: pb.Int(0, levels - 1) if isinstance(levels, int) else pb.Categorical(levels)
            for name, levels in self.grid.items()
        })  # fmt: skip


def family(kind: Kind, site: Site, *, frozen: bool, **grid: int | tuple[str, ...]) -> Family:
    """Give a family of a grid."""
    return Family(kind=kind, frozen=frozen, grid=grid, site=site)


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Tables of the families of one file.

    Attributes:
        module: Name of the file's module, whose code the tables depend on.
        families: By name.
        n_sites: Of every table.
        records: A site holds its first so many records; a table for each.
    """

    module: str
    families: dict[str, Family]
    n_sites: int
    records: tuple[int, ...]

    def surfaces(self, name: str) -> FloatArray:
        """Mean scores, ``(n_sizes, n_sites, n_points)``."""
        path = cache_folder() / f"{self.module.rpartition('.')[2]}-{name.replace(' ', '-')}-{self._source[:12]}.npy"
        if not path.exists():
            chosen = self.families[name]
            found = np.empty((len(self.records), self.n_sites, int(np.prod(chosen.shape))))
            with warnings.catch_warnings(), threadpool_limits(limits=1):  # small models, which many threads slow down
                warnings.simplefilter("ignore")  # extreme levels stop before they converge; their scores say so
                for site in range(self.n_sites):
                    seed = [site, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")]
                    scores = np.clip(chosen.site(np.random.default_rng(seed), chosen.shape), 0.0, 1.0)
                    found[:, site] = [scores[:, :count].mean(axis=1) for count in self.records]
            unfinished = path.with_suffix(f".{os.getpid()}.npy")
            np.save(unfinished, found)
            unfinished.replace(path)
        return np.asarray(np.load(path, allow_pickle=False))

    def digest(self, name: str) -> str:
        """Digest of a family's table, rounded to a millionth."""
        return hashlib.sha256(np.round(self.surfaces(name), 6).tobytes()).hexdigest()[:16]

    @property
    def _source(self) -> str:
        """Digest of the code of this file and of the families', whatever its comments."""
        files = (Path(__file__), Path(str(sys.modules[self.module].__file__)))
        code = "\n".join(ast.dump(ast.parse(file.read_text())) for file in files)
        return hashlib.sha256(code.encode()).hexdigest()


def drawn(*tables: Tables, stream: int, seed: int, name: str, n_clients: int) -> Surfaces:
    """Give a seed's choice of a family's clients.

    Raises:
        ConfigurationError: If there is no such family, or it has fewer clients.
    """
    one = next((one for one in tables if name in one.families), tables[0])
    if name not in one.families or not 1 <= n_clients <= one.n_sites:
        known = ", ".join(name for one in tables for name in one.families)
        raise pb.ConfigurationError(
            f"name={name!r}, n_clients={n_clients}: choose one of {known} and at most {one.n_sites} clients"
        )
    chosen = np.random.default_rng([seed, stream]).permutation(one.n_sites)[:n_clients]
    found = one.families[name]
    return replace(tabulated(name, seed, found.space, found.shape, one.surfaces(name)[0][chosen]), clients=chosen)


def tuned(
    kind: Kind,
    data: str,
    smallest: int,
    model: str | Callable[..., Any],
    fixed: Mapping[str, Any],
    **levels: Sequence[Any] | FloatArray,
) -> Family:
    """Tune a model of scikit-learn's, or of a function of its parameters; a trial fails where it refuses them."""

    def site(rng: np.random.Generator, _: tuple[int, ...]) -> FloatArray:
        halves, index = held(rng, data, smallest, count=RECORDS)
        make: Any = load_function(f"sklearn.{model}", "model") if isinstance(model, str) else model
        found = []
        for at in itertools.product(*levels.values()):
            try:
                fit = make(**fixed, **dict(zip(levels, at, strict=True))).fit(halves.x, halves.y)
            except ValueError:
                found.append(np.full(len(halves.validation_y), np.nan))
                continue
            if data == "diabetes":
                found.append(near(fit.predict(halves.validation_x), halves.validation_y))
            elif hasattr(fit, "predict_proba"):
                found.append(classified(fit, halves, halves.validation_x))
            else:
                found.append((fit.predict(halves.validation_x) == halves.validation_y).astype(float))
        return np.array(found)[:, index]

    grid = {name: tuple(some) if isinstance(some[0], str) else len(some) for name, some in levels.items()}
    return family(kind, site, frozen=True, **grid)


def mesh(*levels: FloatArray) -> list[FloatArray]:
    """Give every level at all points of a grid, ``(n_points, 1)`` each."""
    return [axis.reshape(-1, 1) for axis in np.meshgrid(*levels, indexing="ij")]


@cache
def _pools(data: str) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Inputs, targets, first principal components, and the order whose first half trains."""
    x, y = load(data)
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    parts = left[:, :3] * np.sqrt(len(x)) * np.minimum(values[:3], 1e9) / np.maximum(values[:3], 1e-9)
    return x, y, parts, np.random.default_rng(0).permutation(len(y))


def held(
    rng: np.random.Generator, data: str, smallest: int, features: int | None = None, count: int = MOST_RECORDS
) -> tuple[Halves, IntArray]:
    """A site's training records and the different records it scores; the index of all it scores, ``(count,)``."""
    x, y, parts, order = _pools(data)
    direction = rng.normal(size=parts.shape[1])
    weights = np.exp(0.7 * parts @ direction / np.linalg.norm(direction))
    training, scored = np.array_split(order, 2)
    size = int(smallest * 4 ** rng.random())
    train = rng.choice(training, size, p=weights[training] / weights[training].sum())
    drawn = rng.choice(scored, count, p=weights[scored] / weights[scored].sum())
    rest, index = np.unique(drawn, return_inverse=True)
    x = x[:, :features]
    return Halves(x=x[train], y=y[train], validation_x=x[rest], validation_y=y[rest]), index


def likelihoods(likely: FloatArray, classes: FloatArray, truth: FloatArray) -> FloatArray:
    """Log likelihood of each record's class by shares ``(n, n_classes)``, 0 at a probability of 0.005 and 1 at 1."""
    at = np.minimum(np.searchsorted(classes, truth), len(classes) - 1)
    shares = np.where(classes[at] == truth, likely[np.arange(len(truth)), at], 0.0)
    return np.asarray(1.0 + np.log(np.maximum(shares, 0.005)) / np.log(200.0))


def classified(fitted: Any, halves: Halves, x: FloatArray) -> FloatArray:  # noqa: ANN401  # of scikit-learn
    """Log likelihood of each record's class by a fitted model."""
    return likelihoods(fitted.predict_proba(x), fitted.classes_, halves.validation_y)


def near(predicted: FloatArray, truth: FloatArray, scale: float = 2.0) -> FloatArray:
    """1 at the truth, 0 at ``scale`` standard deviations of the data set from it."""
    return np.asarray(np.maximum(1.0 - np.abs(predicted - truth) / scale, 0.0))
