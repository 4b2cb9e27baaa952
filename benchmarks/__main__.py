"""``python -m benchmarks [NAME ...]``: measure, print ratios, write ``bench.json``.

A benchmark is a module with ``rows()``, which yields a ``Row`` (or its values) per measurement: one of this
package by its name, any other by its dotted path.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks._rows import Row


def main() -> None:
    """Run the named benchmarks, or all of them."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not (m.ispkg or m.name.startswith("_")))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    arguments = parser.parse_args()
    unknown = {name for name in arguments.names if "." not in name} - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    found: list[Row] = []
    for name in arguments.names or names:
        for measured in importlib.import_module(name if "." in name else f"benchmarks.{name}").rows():
            row = measured if isinstance(measured, Row) else Row(*measured)
            found.append(row)
            if row.kind != "recorded":
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
    _tail(found)
    arguments.out.write_text(json.dumps([row.to_dict() for row in found], indent=2) + "\n")
    sys.stdout.write(f"written: {arguments.out}\n")


def _tail(found: Sequence[Row]) -> None:
    """Print how far from the machine's limit the rows are, and apart from all others those recorded elsewhere."""
    limited = {row.name: row for row in found if row.least is not None}
    for row in limited.values():
        share = (row.least or 0.0) / row.ours
        sys.stdout.write(
            f"of the machine's peak: {share:.2g} ({row.name}: {row.ours:.3g} s, {row.least:.3g} s at least)\n"
        )
    for row in found:
        if row.kind == "recorded":
            sys.stdout.write(f"recorded elsewhere, no comparison: {row}\n")


if __name__ == "__main__":
    main()
