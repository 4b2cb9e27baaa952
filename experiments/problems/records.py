"""Some sites of a family of ``record_families``, with the values of all points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

import privbo as pb
from experiments.problems.record_families import FAMILIES, RECORDS, SITES, TABLES
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space


@dataclass(frozen=True, kw_only=True)
class Sites:
    """Some sites of a family.

    Attributes:
        space: What is searched.
        points: All of its points, ``(n_points, n_dims)``.
        values: Mean scores, ``(n_sites, n_points)``.
        n_records: Of each site.
        numbers: The sites' among the family's, of which every seed draws some; None where no two seeds have one alike.
    """

    space: Space
    points: FloatArray
    values: FloatArray
    n_records: int
    numbers: IntArray | None = None

    @cached_property
    def _index(self) -> dict[bytes, int]:
        return {point.tobytes(): i for i, point in enumerate(self.points)}

    @property
    def losses(self) -> FloatArray:
        """Regret at every point, in units of a site's range."""
        best = self.values.max(axis=1, keepdims=True)
        return np.asarray((best - self.values) / np.ptp(self.values, axis=1, keepdims=True))

    def at(self, units: FloatArray) -> IntArray:
        """Numbers of points ``(..., n_dims)``, ``(...)``."""
        flat = [self._index[unit.tobytes()] for unit in units.reshape(-1, units.shape[-1])]
        return np.array(flat, dtype=np.int64).reshape(units.shape[:-1])


def sites(seed: int, family: str, n_sites: int, n_records: int, *, unlike: bool = False) -> Sites:
    """Give a seed's choice of a family's sites; ``unlike`` flips and rolls every site's axes at random.

    Raises:
        ConfigurationError: If there is no such family, number of sites or of records.
    """
    if family not in FAMILIES or not 1 <= n_sites <= SITES or n_records not in RECORDS:
        raise pb.ConfigurationError(
            f"family={family!r}, n_sites={n_sites}, n_records={n_records}: choose one of {', '.join(FAMILIES)}, "
            f"at most {SITES} sites, and {', '.join(map(str, RECORDS))} records"
        )
    chosen, generator = FAMILIES[family], np.random.default_rng([seed, 31])
    numbers = generator.permutation(SITES)[:n_sites]
    values = TABLES.surfaces(family)[RECORDS.index(n_records)][numbers]
    if unlike:
        tables = values.reshape(n_sites, *chosen.shape)
        for i in range(n_sites):
            for axis in range(len(chosen.shape)):
                turned = np.flip(tables[i], axis) if generator.random() < 0.5 else tables[i]
                tables[i] = np.roll(turned, int(generator.integers(chosen.shape[axis])), axis)
        values = tables.reshape(n_sites, -1)
    points = chosen.space.grid()
    if points is None:
        raise pb.ConfigurationError(f"family={family!r} is larger than a grid")
    drawn = None if unlike else numbers
    return Sites(space=chosen.space, points=points, values=values, n_records=n_records, numbers=drawn)
