"""``python -m benchmarks [NAME ...]``: measure, print ratios, write ``bench.json``.

A benchmark is a module with ``rows()``, which yields a ``Row`` (or its values) per measurement: one of this
package by its name, any other by its dotted path. Those that take long run by name only. The file is written after
every row, so that what was measured stays where a run is interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import benchmarks
import privbo as pb
from benchmarks._rows import Kind, Limit, Row
from privbo.runs.code import CODE, toolkit

DEAR = {"scale": "a quarter of an hour; `make scale`"}  # run by name only


def main() -> None:
    """Run the named benchmarks, or all that are not dear."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not (m.ispkg or m.name.startswith("_")))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; by default all but {', '.join(DEAR)}")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    arguments = parser.parse_args()
    unknown = {name for name in arguments.names if "." not in name} - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    found: list[Row] = []
    made = f"privbo {pb.__version__}, {datetime.now(UTC):%Y-%m-%d}, code {toolkit()[CODE][:8]}"
    for name in arguments.names or [name for name in names if name not in DEAR]:
        start = time.perf_counter()
        for measured in importlib.import_module(name if "." in name else f"benchmarks.{name}").rows():
            row = _row(measured)
            found.append(row)
            arguments.out.write_text(json.dumps([row.to_dict() | {"made": made} for row in found], indent=2) + "\n")
            if row.kind != "recorded":
                _say(f"{row}")
        _say(f"{name} took {time.perf_counter() - start:.0f} s")
    _tail(found)
    if not arguments.names:
        _say(f"not run: {', '.join(f'{name} ({why})' for name, why in DEAR.items())}")
    _say(f"written: {arguments.out}")


def _row(measured: Row | tuple[str, float, str, float, Kind, float | None]) -> Row:
    """A row; rooms that may not import this one give its values and the seconds of the objective alone."""
    if isinstance(measured, Row):
        return measured
    name, ours, peer, theirs, kind, objective = measured
    limit = None if objective is None else Limit(objective, "the objective")
    return Row(name, ours, peer, theirs, kind=kind, least=limit)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tail(found: Sequence[Row]) -> None:
    """Print how far from the machine's limit the rows are, and apart from all others those recorded elsewhere."""
    for row in {row.name: row for row in found}.values():
        if row.least is not None:
            share = row.least.seconds / row.ours
            _say(
                f"of the machine's limit: {share:.2g} ({row.name}: {row.ours:.3g} s, "
                f"{row.least.seconds:.3g} s at least for {row.least.by})"
            )
    for row in found:
        if row.kind == "recorded":
            _say(f"recorded elsewhere, no comparison: {row}")


if __name__ == "__main__":
    main()
