"""``python -m benchmarks [NAME ...]``: measure, print ratios, write ``bench.json``.

A benchmark is a module of this package with ``rows()``, which yields dictionaries with
``name``, ``ours_s``, ``peer``, ``peer_s`` and ``ratio`` (peer over ours: larger is better).
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path

import benchmarks


def main() -> None:
    """Run the named benchmarks, or all of them."""
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    found = []
    for name in arguments.names or names:
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            found.append(row)
            print("{name}: {ours_s:.4g} s, {peer} {peer_s:.4g} s, ratio {ratio:.3g}".format_map(row))
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
