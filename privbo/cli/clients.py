"""Commands where clients' data lie: their points, their trials, and a run as it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accountant.verify.text import shown
from privbo.cli.options import AnyDir, AsJson, Client, NamedLedger, ShowPrivate, say, say_lines, show_result
from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from privbo.cli.best import CommonPoint, OwnPoints


def best(
    directory: AnyDir,
    client: Client = None,
    common: Annotated[bool, typer.Option("--common", help="PUBLIC: the common setting of the final vote.")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML, to use as it is.")] = False,
    show_private: ShowPrivate = False,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: the parameters that every local client would use; at a site, its own clients'. --common is public."""
    from privbo.cli.best import common_point, own_points, toml_of

    if as_toml and as_json:
        raise ConfigurationError("--toml and --json are two forms; give one of them")
    if common and (client is not None or show_private):
        raise ConfigurationError("--common is one setting for every client; drop --client and --show-private")
    if common:
        found: CommonPoint | OwnPoints = common_point(directory, ledger=ledger)
    else:
        found = own_points(directory, client=client, show_private=show_private, ledger=ledger)
    if as_toml:
        say_lines(toml_of(found, alone=client is not None))
        return
    show_result(found, as_json=as_json)


def trials(
    directory: AnyDir,
    client: Client = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those with a value or a failure.")] = False,
) -> object:
    """PRIVATE: the trials that wait for a value from outside, of a run with objective = "ask"."""
    from privbo.cli.trials import listed

    return listed(directory, client=client, everything=everything)


def tell(
    directory: AnyDir,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial; without it, values are typed in.")] = None,
    value: Annotated[float | None, typer.Argument(help="Its value; larger is better.")] = None,
    failed: Annotated[str | None, typer.Option(help="Why it has none.")] = None,
) -> object:
    """PRIVATE: tell a trial's value or failure; without a trial, ask for one value after the other."""
    from privbo.cli.trials import told, typed

    if trial is None and failed is not None:
        raise ConfigurationError("--failed is about one trial; give its number")
    if trial is None:
        return typed(directory, lambda prompt: input(shown(prompt)), say)
    return told(directory, trial, value, failed)


def watch(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs, or a site's folders.")],
    private: Annotated[
        bool, typer.Option("--private", help="PRIVATE: who is present and, where their data lie, clients' trials.")
    ] = False,
    static: Annotated[Path | None, typer.Option(help="Write a file that reloads itself, and serve nothing.")] = None,
    once: Annotated[bool, typer.Option("--once", help="With --static: write it once.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Seconds between two looks.")] = 5,
    ledger: NamedLedger = None,
) -> None:
    """Watch runs as they go on, side by side in a browser: public facts, unless --private asks for more."""
    import threading

    from privbo.cli.watch import live_server, write_until
    from privbo.reports.watch import Watch

    if once and static is None:
        raise ConfigurationError("--once is for --static FILE")
    watched = Watch(directories=directories, private=private, every=every, ledger=ledger)
    stop = threading.Event()
    try:
        if static is not None:
            if once:
                stop.set()
            say(f"{static}, every {every} s" if not once else str(static))
            write_until(watched.page, static, every=every, stop=stop, private=private)
            return
        server, address = live_server(watched.page, port)
        say(f"open once: {address}")
        server.serve_forever()
    except KeyboardInterrupt:
        return
