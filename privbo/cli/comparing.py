"""The command ``privbo compare``: a sweep of settings, or runs side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from privbo.cli.options import AsJson, NamedLedger, Trust, Yes, say, show_result
from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from privbo.comparisons.setting import Data


def compare(
    what: Annotated[list[Path], typer.Argument(help="One sweep file (TOML), or directories of runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of cells, page and tables.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel processes, one thread each.")] = 2,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to use instead.")] = None,
    recommend: Annotated[
        str | None, typer.Option(help="Best setting within a budget, unless data is private: epsilon=2")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Whose data runs saw: private (the default), public, simulated or proxy; a sweep says so."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Also write and print utilities over private data, into OUT/private.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run every cell of a sweep again; over private data this charges again.")
    ] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: show a sweep's finished cells, older code's too, named.")
    ] = False,
    yes: Yes = False,
    trust: Trust = False,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Utility against epsilon: a sweep of settings over seeds, or runs side by side.

    Cells of a sweep are kept and reused while settings and code are the same; it says how many, and why others run.
    Over private data only prices are shown unless --private is given, nothing is recommended, and what is to be charged
    is shown and asked for first.
    """
    from privbo.cli.compare import compare_runs, compare_sweep

    budget, is_sweep = _budget(recommend), len(what) == 1 and what[0].suffix == ".toml"
    whose = _data(data, is_sweep=is_sweep)
    if ledger is not None and is_sweep:
        raise ConfigurationError("--ledger is for runs; a sweep names its own: [ledger] in its file")
    _cells_of_a_sweep(fresh=fresh, finished=finished, trust=trust, is_sweep=is_sweep)
    try:
        if is_sweep:
            found = compare_sweep(
                what[0],
                out=out,
                jobs=jobs,
                scheduler=scheduler,
                budget=budget,
                private=private,
                fresh=fresh,
                finished=finished,
                yes=yes,
                trust=trust,
            )
        else:
            found = compare_runs(what, out=out, data=whose, budget=budget, private=private, ledger=ledger)
    except KeyboardInterrupt:
        say("privbo: interrupted; the same command goes on with what is left", err=True)
        raise typer.Exit(130) from None
    show_result(found, as_json=as_json)


def _data(name: str | None, *, is_sweep: bool) -> Data:
    from typing import get_args

    from privbo.comparisons.setting import Data

    if name is None:
        return "private"
    if is_sweep:
        raise ConfigurationError("--data is for runs; a sweep says it itself: data = ... in its file")
    if name not in get_args(Data):
        raise ConfigurationError(f"--data {name!r}: write one of {', '.join(get_args(Data))}")
    return cast("Data", name)


def _cells_of_a_sweep(*, fresh: bool, finished: bool, trust: bool, is_sweep: bool) -> None:
    if (fresh or finished) and not is_sweep:
        raise ConfigurationError("--fresh and --finished are for a sweep's cells; runs are compared as they are")
    if fresh and finished:
        raise ConfigurationError("--fresh runs every cell and --finished none; give one of them")
    if trust and not finished:
        raise ConfigurationError(
            "--trust is for --finished: runs are compared without their code, and a sweep runs its"
        )


def _budget(recommend: str | None) -> float | None:
    if recommend is None:
        return None
    name, _, text = recommend.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if name.strip() != "epsilon" or not value > 0:
        raise ConfigurationError(f"--recommend {recommend!r}: write epsilon=VALUE with a value > 0")
    return value
