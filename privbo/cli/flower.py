"""``privbo flower``: an app to load, keys, and a federation on this machine to try it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privbo.cli.options import AsJson, Rehearses, Trust, say, say_lines, show_result

app = typer.Typer(help="Clients on other machines, over Flower.", no_args_is_help=True)
_FLOWERS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    epsilon: Annotated[
        float, typer.Option(prompt="Epsilon of all runs together on a site's people", help="Bound of every site.")
    ],
    delta: Annotated[float, typer.Option(prompt="Delta where it holds", help="Where the bound holds.")],
    sites: Annotated[int, typer.Option(min=1, help="Sites in the example.")] = 3,
    clients_per_site: Annotated[int, typer.Option(min=1, help="Clients at every site.")] = 10,
    guardians: Annotated[
        int, typer.Option(min=0, help="Guardians, so that no server is trusted; 0 or 2 and more.")
    ] = 0,
) -> None:
    """Write the thin app that Flower loads, and a site.toml with a policy for every site of the example."""
    from privbo.flower.scaffold import write_app

    made = write_app(
        directory,
        n_sites=sites,
        clients_per_site=clients_per_site,
        epsilon=epsilon,
        delta=delta,
        n_guardians=guardians,
    )
    for path in made:
        say(str(path))


@app.command()
def guardian(
    directory: Annotated[Path, typer.Argument(help="The guardian's own folder, new or with its keys.")],
    name: Annotated[str, typer.Option(help="Its name in federation.toml.")],
    epsilon: Annotated[
        float, typer.Option(prompt="Epsilon of all runs together", help="Bound over all runs that it guards.")
    ],
    delta: Annotated[float, typer.Option(prompt="Delta where it holds", help="Where the bound holds.")],
) -> None:
    """Make a guardian's keys and guardian.toml, on its own machine, and print its lines of federation.toml."""
    from privbo.flower.scaffold import write_guardian
    from privbo.plans.policy import Policy

    say_lines(write_guardian(directory, name, Policy(epsilon=epsilon, delta=delta)))


@app.command()
def approve(
    file: Annotated[Path, typer.Argument(help="This party's own site.toml or guardian.toml.")],
    app_folder: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder, or its run.toml.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    trust: Trust = False,
    rehearsal: Rehearses = True,
    as_json: AsJson = False,
) -> None:
    """Show the plan of an app's files, its price and whom it hides, and pin the files in FILE if they are approved.

    A site that is about to approve a private run evaluates each of its own clients once. Where none has a value the
    exit code is 3, nothing is approved, and no question of that run is answered.
    """
    from privbo.cli.check import examined, rehearse_site
    from privbo.flower.party import approve_files

    found, party, files = examined(file, app_folder, trust=trust)
    show_result(found, as_json=as_json)
    if not found.passed:
        raise typer.Exit(3)
    if not yes and not typer.confirm(f"Serve this run as {party.role} {party.name}?", err=True):
        raise typer.Exit(1)
    if rehearsal and (shown := rehearse_site(party, files)) is not None:
        say(f"{file}: {shown}", err=True)
    if approve_files(file, party, files):
        say(f"{file}: approved; this {party.role} serves runs of exactly these two files", err=True)
    else:
        say(f"{file}: these two files were approved before", err=True)


@app.command()
def up(
    directory: Annotated[Path, typer.Argument(help="The app's folder.")] = Path(),
) -> None:
    """Start a SuperLink and a SuperNode per site on loopback, play the run, and stop them: for trying out."""
    from privbo.flower.launch import QUIET_NOTE, play_locally

    say(f"privbo: {QUIET_NOTE}; everything listens on loopback, without TLS", err=True)
    play_locally(directory)


@app.command(context_settings=_FLOWERS)
def supernode(context: typer.Context) -> None:
    """Be a SuperNode (flower-supernode's options) that calls nothing but its server and forks its processes."""
    from privbo.flower.launch import become

    become("flower-supernode", context.args)


@app.command(context_settings=_FLOWERS)
def superlink(context: typer.Context) -> None:
    """Be a SuperLink (flower-superlink's options) that calls nothing and forks its processes."""
    from privbo.flower.launch import become

    become("flower-superlink", context.args)


@app.command()
def keys(
    directory: Annotated[Path, typer.Argument(help="A new folder for certificates and keys.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas.")],
    hosts: Annotated[str, typer.Option(help="Names and addresses of the server.")] = "127.0.0.1,localhost",
) -> None:
    """Make an authority, the server's certificate and every site's key pair."""
    from privbo.flower.keys import AUTHORITY, CERTIFICATE, KEY, make_keys

    names = [name.strip() for name in sites.split(",")]
    folder = make_keys(directory, sites=names, hosts=[host.strip() for host in hosts.split(",")])
    say(f"{folder / AUTHORITY}: to every machine")
    say(f"{folder / CERTIFICATE}, {folder / KEY}: to the server alone")
    for name in names:
        say(f"{folder / name}.key: to {name} alone; {folder / name}.pub is public")
