"""``python -m experiments NAME``: run one experiment and write what it found.

``verdicts`` judges what is stored; ``again`` plays one cell of every stored panel and prints it beside what is stored.
``--show`` prints the experiment as one file, with every table filled in, and runs nothing; ``--arm`` and ``--seed``
run one cell and print it beside what is stored.

Every experiment writes ``summary.json``, its table as Markdown and CSV and its pictures as PNG and PDF into
its folder, keeps its finished cells beside it, and goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from accountant.errors import PrivacyError
from experiments import one
from experiments.run import Options, run
from experiments.study import study, titles
from experiments.verdicts import every, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; exit code 2 for bad input, 130 for Ctrl-C.

    Args:
        arguments: After the program's name; None for those of this process.
    """
    known = titles()
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*sorted(known), "verdicts", "again"], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name all experiments")
    parser.add_argument("--scale", choices=("small", "paper"), default="paper")
    parser.add_argument("--out", type=Path, help="folder to write into (default results/NAME)")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--finished", action="store_true", help="show what is finished, run nothing")
    parser.add_argument("--show", action="store_true", help="print the resolved experiment, run nothing")
    parser.add_argument("--arm", help="label of one arm")
    parser.add_argument("--seed", type=int, help="run that arm at this seed")
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes")
    given = parser.parse_args(arguments)
    if given.list:
        return _say(f"{name}: {title}" for name, title in known.items())
    if given.name is None:
        parser.error("name an experiment, or --list")
    if given.seeds is not None and given.seeds < 1:
        parser.error(f"--seeds {given.seeds} must be at least 1")
    if (given.seed is None) == (given.arm is not None) and not given.show:
        parser.error("give --arm and --seed together, or --show")
    out = given.out or Path("results") / given.name
    try:
        shown = _asked(given, known)
        if shown is not None:
            return _say(shown)
        run(given.name, out, Options(scale=given.scale, seeds=given.seeds, jobs=given.jobs, finished=given.finished))
    except PrivacyError as error:
        sys.stderr.write(f"experiments: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on with what is left\n")
        return 130
    sys.stdout.write((out / "table.md").read_text())
    sys.stdout.write(f"\nwritten into {out}: {', '.join(sorted(path.name for path in out.iterdir()))}\n")
    return 0


def _asked(given: argparse.Namespace, known: Iterable[str]) -> Iterable[str] | None:
    """What is printed and not written, if that is asked for."""
    if given.name == "verdicts":
        return [table(every())]
    if given.name == "again":
        return one.table(one.every(known))
    if given.show or given.arm is not None:
        return one.lines(study(given.name, given.scale), given.arm, None if given.show else given.seed)
    return None


def _say(shown: Iterable[str]) -> int:
    for line in shown:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
