"""Results of cells as they are kept, and what may be said of reusing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from privbo.comparisons.setting import Kind, Setting
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_json, write_json
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject, read_settings
from privbo.runs.code import CodeKey

_FORMAT = 4  # of a kept file; files of other formats are made again


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Numbers of one setting at one seed.

    Attributes:
        curves: By measure, mean over clients after initialisation and every round, ``(n_rounds + 1,)``:
            ``"score"`` (best so far), where the problem states them ``"regret"``, and ``"loss"``;
            a driver of its own may keep others. PRIVATE if the clients' data are.
        epsilon: Smallest valid epsilon of the run; None where it is infinite, 0 where nothing is released.
        delta: Of that epsilon.
        strict_epsilon: The same at ``strict_delta``.
        strict_delta: min(1e-5, 1/(10 N)).
        noise_multipliers: Of the planned releases, each once; empty without noise.
        releases: Planned releases.
        best_per_client: PRIVATE: every client's best score, None where it has none; private sweeps only.
        extra: Whatever else a driver of its own keeps.
    """

    curves: Mapping[str, tuple[float, ...]]
    epsilon: float | None = 0.0
    delta: float = 0.0
    strict_epsilon: float | None = 0.0
    strict_delta: float = 0.0
    noise_multipliers: tuple[float, ...] = ()
    releases: int = 0
    best_per_client: tuple[float | None, ...] = ()
    extra: JsonObject = field(default_factory=dict)


def setting_of(
    results: Mapping[int, CellResult],
    *,
    label: str,
    kind: Kind,
    curve: str,
    overrides: JsonObject | None = None,
    older: tuple[str, ...] = (),
) -> Setting:
    """Collect one setting's results by seed; ``curve`` is the measure that is compared."""
    first = next(iter(results.values()))
    return Setting(
        label=label,
        kind=kind,
        epsilon=first.epsilon,
        delta=first.delta,
        strict_epsilon=first.strict_epsilon,
        strict_delta=first.strict_delta,
        noise_multipliers=first.noise_multipliers,
        releases=first.releases,
        overrides=overrides or {},
        seeds=tuple(results),
        curves=np.array([r.curves[curve] for r in results.values()]) if curve in first.curves else None,
        older=older,
    )


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A finished cell on disk.

    Attributes:
        name: Its file's name; equal names hold equal results.
        result: Its numbers.
        code: Code that made them.
        made: Day on which they were made, as ``YYYY-MM-DD``.
        is_current: Whether that code is the code here and now.
    """

    name: str
    result: CellResult
    code: CodeKey
    made: str
    is_current: bool

    @property
    def made_by(self) -> str:
        """Version and day, for tables that show an older result."""
        return f"privbo {self.code.parts.get('version privbo', 'of an unknown version')}, {self.made}"


def keep(path: Path, result: CellResult, code: CodeKey) -> None:
    """Write a finished cell atomically."""
    made = f"{datetime.now(UTC):%Y-%m-%d}"
    write_json(path, {"format": _FORMAT, "made": made, "code": plain(code), "result": plain(result)})


def read_kept(path: Path, wanted: CodeKey) -> Kept | None:
    """Read a finished cell; None if the file is of another format or damaged, so that the cell runs again."""
    try:
        content = read_json(path)
        if content.get("format") != _FORMAT:
            return None
        code = read_settings(CodeKey, content["code"], "code")
        result = read_settings(CellResult, content["result"], "cell.result")
    except (RunError, ConfigurationError, KeyError, TypeError, AttributeError):
        return None
    current = code.digest is not None and code.digest == wanted.digest
    return Kept(name=path.stem, result=result, code=code, made=str(content.get("made")), is_current=current)


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Cells that are read back and cells that are run, and why.

    Attributes:
        cells: Number of cells.
        reused: Of them, results of the code here and now that were there already.
        made: Days on which the reused ones were made, in order.
        reasons: Number of cells that are run, by reason.
        older: Number of cells that are shown though older code made them, by version and day.
    """

    cells: int
    reused: int
    made: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    older: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> tuple[str, ...]:
        """Say it in one to three lines.

        Example:
            >>> Reuse(cells=8, reused=8, made=("2026-11-20", "2026-11-22")).lines()
            ('8 of 8 cells reused, made 2026-11-20 to 2026-11-22',)
        """
        days = " to ".join(dict.fromkeys((self.made[0], self.made[-1]))) if self.made else ""
        found = [f"{self.reused} of {self.cells} cells reused, made {days}"] if self.reused else []
        if self.reasons:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.items())
            found.append(f"{sum(self.reasons.values())} of {self.cells} cells run: {reasons}")
        if self.older:
            shown = "; ".join(f"{count} of {made_by}" for made_by, count in self.older.items())
            found.append(f"{sum(self.older.values())} of {self.cells} cells are shown as older code made them: {shown}")
        return tuple(found)

    def to_dict(self) -> JsonObject:
        """Give the summary as JSON."""
        return fields_of(self) | {"lines": list(self.lines())}


def summarised(kept: Sequence[Kept | None], reasons: Sequence[str | None]) -> Reuse:
    """Count what was found, cell by cell: its kept result, or the reason for which it is run."""
    there = [k for k, reason in zip(kept, reasons, strict=True) if k is not None and reason is None]
    current = [k for k in there if k.is_current]
    return Reuse(
        cells=len(kept),
        reused=len(current),
        made=tuple(sorted({k.made for k in current})),
        reasons=_counted([reason for reason in reasons if reason is not None]),
        older=_counted([k.made_by for k in there if not k.is_current]),
    )


def _counted(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}
