"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from accountant.verify.text import shown
from privbo.cli import flower, ledger
from privbo.cli.options import (
    LOADING,
    AnyDir,
    AsJson,
    Client,
    DryRun,
    Jobs,
    NamedLedger,
    OutDir,
    Overrides,
    Rehearses,
    RunDir,
    ShowPrivate,
    Trust,
    Yes,
    agree,
    command,
    say,
    say_lines,
    show_result,
)
from privbo.protocol.errors import ConfigurationError, RehearsalError


class Commands(typer.core.TyperGroup):
    """The commands; of one that is looked for in the wrong place the error names the right one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (click's own types)
        """Find a command."""
        name = args[0]
        if self.get_command(ctx, name) is None:
            under = ["report DIR --statement"] * (name == "statement")
            under += [
                f"{group} {name}" for group in self.commands if name in getattr(self.commands[group], "commands", ())
            ]
            if under:
                ctx.fail(f"No such command {name!r}; write privbo {under[0]}")
        return super().resolve_command(ctx, args)


typer.core.HAS_RICH = False  # plain help: what Rich needs for it takes as long to load as all the rest
app = typer.Typer(
    name="privbo",
    help="Differentially private federated optimisation of expensive black boxes.",
    cls=Commands,
    suggest_commands=False,  # click does
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger.app, name="ledger")
app.add_typer(flower.app, name="flower")


def main() -> None:
    """Entry point: one clear line and exit code 2 for bad input, 3 for what was checked and fails, 130 for Ctrl-C."""
    from accountant.errors import DisagreementError, PrivacyError

    said: set[str] = set()

    def note(message: Warning | str, *_args: object, **_settings: object) -> None:
        if str(message) not in said:  # a sweep would print it once per cell
            said.add(str(message))
            say(f"note: {message}", err=True)

    warnings.showwarning = note
    # Modules stay: looking for garbage among them takes a fifth of a short run, and as long again on the way out. A
    # command that calls objectives looks for theirs (``loaded``).
    gc.set_threshold(LOADING, 100)
    atexit.register(gc.freeze)
    try:
        app()
    except PrivacyError as error:
        say(f"privbo: {error}", err=True)
        sys.exit(3 if isinstance(error, DisagreementError | RehearsalError) else 2)
    except OSError as error:  # a full disk, a folder that can't be written
        again = ": a run goes on with --resume DIR" if sys.argv[1:2] == ["run"] else ""
        say(f"privbo: {error}; fix that and try again{again}", err=True)
        sys.exit(2)
    except MemoryError as error:
        say(f"privbo: the settings ask for more memory than there is: {error or 'make them smaller'}", err=True)
        sys.exit(2)
    except Exception as error:  # a fault of ours, printed whole; what it quotes of others' files is printable
        for part in traceback.format_exception(error):
            # Lines of code as they are, a message as one line.
            lines = part.splitlines() if part.startswith(("  File ", "\n")) else [part.removesuffix("\n")]
            for line in lines:
                say(line, err=True)
        sys.exit(1)


def _version(asked: bool) -> None:
    if asked:
        from privbo import __version__

        say(f"privbo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@command(app)
def run(
    config: Annotated[Path | None, typer.Argument(help="Configuration file (TOML).")] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
    directory: OutDir = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    trust: Trust = False,
    show_private: ShowPrivate = False,
    rehearsal: Rehearses = True,
) -> object:
    """Run a configuration, or go on with an interrupted run.

    A private run begins once every client has tried its objective; where none has a value the exit code is 3, and
    nothing was made or charged.
    """
    from privbo.cli.run import carry_out, price_run, read_run

    load = trust or not dry_run
    spec, home = read_run(
        config, overrides or [], resume=resume, directory=directory, jobs=jobs, load=load, trust=trust
    )
    if dry_run:
        return price_run(spec, opens=load, resumed=resume)
    try:
        return carry_out(spec, home, resume=resume is not None, rehearse=rehearsal, show_private=show_private)
    except KeyboardInterrupt:
        rest = f"go on with: privbo run --resume {home}" if home.exists() else "no run was made"
        say(f"privbo: interrupted; {rest}", err=True)
        raise typer.Exit(130) from None


@command(app)
def check(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    overrides: Overrides = None,
    site: Annotated[
        Path | None, typer.Option(help="A federation's site.toml: try this site's own clients and objective out.")
    ] = None,
    show_private: ShowPrivate = False,
) -> object:
    """Try a configuration out: its code, its price, one evaluation per client. Charges, writes and sends nothing.

    It prints what the policy decides, with --site the site's own. Exit code 3 if no client has a value, or if the run
    is refused. With --show-private it prints who failed and why; exit code 3 if a client did.
    """
    from privbo.cli.check import tried_out

    return tried_out(config, overrides or [], show_private=show_private, site=site)


@command(app)
def scout(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML); its problem and its ledger are taken.")],
    epsilon: Annotated[float, typer.Option(help="Privacy cost of the one release.")],
    points: Annotated[int, typer.Option(min=3, max=256, help="Evaluations of every client.")] = 16,
    overrides: Overrides = None,
    directory: OutDir = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> object:
    """Estimate how alike clients' surfaces are, by one small release, and what sharing may then bring.

    The standard error to expect is printed before anything is charged.
    """
    from privbo.cli.scout import forecast, scout as find

    if dry_run:
        return forecast(config, overrides or [], epsilon=epsilon, n_points=points, trust=trust)
    return find(config, overrides or [], epsilon=epsilon, n_points=points, directory=directory, yes=yes)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    from privbo.runs.spec import schema as found

    show_result(found(), as_json=True)


@app.command()
def quickstart(
    overrides: Overrides = None,
    directory: OutDir = None,
    dry_run: DryRun = False,
    show_private: ShowPrivate = False,
    show_config: Annotated[bool, typer.Option("--print", help="Print the configuration, to start from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the packaged example: 40 clients tune a classifier of tumours."""
    from privbo.quickstart import CONFIG

    if show_config:
        say_lines(CONFIG.read_text())
    else:
        found = run(CONFIG, overrides, directory=directory, dry_run=dry_run, show_private=show_private)
        show_result(found, as_json=as_json)
        home = getattr(found, "directory", None)
        if home is not None and not as_json:
            say(f"next: privbo report {home} --statement writes a sheet for a board")
            say(f"      privbo bundle {home} writes a file for an auditor")


@app.command()
def report(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where the page goes; DIR/report.html by default.")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Add private diagnostics; the page stays private.")
    ] = False,
    regret: Annotated[
        Path | None, typer.Option(help="Private diagnostics with regret: the configuration whose problem states it.")
    ] = None,
    statement: Annotated[
        bool, typer.Option("--statement", help="Also write statement.html: one sheet for an ethics board.")
    ] = False,
    purpose: Annotated[str | None, typer.Option(help="With --statement: purpose of the processing.")] = None,
    organisation: Annotated[str | None, typer.Option(help="With --statement: who is responsible.")] = None,
    client_is: Annotated[
        str | None, typer.Option(help="With --statement: what one client is, such as 'a hospital'.")
    ] = None,
    parquet: Annotated[Path | None, typer.Option(help="Also write the public history as Parquet.")] = None,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Report what a run cost: writes report.html and prints the tables, or prints JSON."""
    from privbo.cli.run import report_run
    from privbo.reports.report import write_parquet
    from privbo.reports.report_page import Told
    from privbo.runs.record import load

    told = Told(purpose=purpose, organisation=organisation, client_is=client_is)
    if not statement and told != Told():
        raise ConfigurationError("--purpose, --organisation and --client-is stand on the statement; add --statement")
    if as_json and (statement or out is not None):
        raise ConfigurationError("--json writes no page: leave out --statement and --out, or --json")
    if parquet is not None:
        record = load(directory, ledger=ledger)
        with record.ledger:
            write_parquet(record, parquet)
    found = report_run(
        directory,
        out=out,
        private=private,
        regret=regret,
        statement=told if statement else None,
        ledger=ledger,
        write=not as_json,
    )
    show_result(found, as_json=as_json)


@app.command()
def best(
    directory: AnyDir,
    client: Client = None,
    common: Annotated[
        bool, typer.Option("--common", help="PUBLIC: the voted setting, or the algorithm's own.")
    ] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML, to use as it is.")] = False,
    show_private: ShowPrivate = False,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: the parameters that every local client would use; at a site, its own clients'. --common is public."""
    from privbo.cli.clients import common_point, own_points

    if as_toml and as_json:
        raise ConfigurationError("--toml and --json are two forms; give one of them")
    if common and (client is not None or show_private):
        raise ConfigurationError("--common is one setting for every client; drop --client and --show-private")
    found, toml = (
        common_point(directory, ledger=ledger)
        if common
        else own_points(directory, client=client, show_private=show_private, ledger=ledger)
    )
    if as_toml:
        say_lines(toml)
    else:
        show_result(found, as_json=as_json)


@command(app)
def trials(
    directory: AnyDir,
    client: Client = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those with a value or a failure.")] = False,
) -> object:
    """PRIVATE: the trials that wait for a value from outside, of a run with objective = "ask"."""
    from privbo.cli.clients import trials_of
    from privbo.runs.session import Site

    site = Site(directory)
    return trials_of(site, [trial for trial in site.trials(client) if everything or trial.state == "open"])


@command(app, context_settings={"ignore_unknown_options": True})  # a value may be negative
def tell(
    directory: AnyDir,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial; without it, values are typed in.")] = None,
    value: Annotated[float | None, typer.Argument(help="Its value; larger is better.")] = None,
    failed: Annotated[str | None, typer.Option(help="Why it has none.")] = None,
) -> object:
    """PRIVATE: tell a trial's value or failure; without a trial, ask for one value after the other."""
    from privbo.cli.clients import trials_of, typed
    from privbo.runs.session import Site

    if trial is None and failed is not None:
        raise ConfigurationError("--failed is about one trial; give its number")
    if trial is None:
        return typed(directory, lambda prompt: input(shown(prompt)), say)
    if (value is None) == (failed is None):
        raise ConfigurationError("give a value, or --failed REASON")
    site = Site(directory)
    return trials_of(site, [site.tell(trial, value, failure=failed)])


@app.command()
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
    from privbo.cli.watch import live_server, write_until
    from privbo.reports.watch import Watch

    if once and static is None:
        raise ConfigurationError("--once is for --static FILE")
    watched = Watch(directories=directories, private=private, every=every, ledger=ledger)
    try:
        if static is not None:
            write_until(watched.page, static, every=None if once else every, private=private)
            return
        server, address = live_server(watched.page, port)
        say(f"open once: {address}")
        server.serve_forever()
    except KeyboardInterrupt:
        return


@command(app)
def audit(
    target: Annotated[
        Path, typer.Argument(help="Directory of a run, or a site's folder; with --empirical also a configuration.")
    ],
    empirical: Annotated[bool, typer.Option("--empirical", help="Attack the mechanism as a black box.")] = False,
    trials: Annotated[int, typer.Option(min=1000, help="Releases per side of the attack.")] = 20_000,
    publish_norms: Annotated[
        float | None, typer.Option(help="Release a noisy histogram of norms with this noise multiplier; charged.")
    ] = None,
    yes: Yes = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes; DIR/private/audit.html by default.")] = None,
    trust: Trust = False,
    ledger: NamedLedger = None,
) -> object:
    """PRIVATE: audit the clipping; at a site, of its own records' scores.

    Exit code 3 if the black-box audit contradicts the claim.
    """
    from dataclasses import replace

    from privbo.audits.clipping import audit as audit_clipping, price_of_norms, publish_norms as publish
    from privbo.audits.empirical import Audit, audit_plan, audit_run
    from privbo.protocol.files import require_no_link, write_json
    from privbo.protocol.settings import fields_of
    from privbo.reports.audit import write_audit
    from privbo.runs.best import FACTS, file_of_one_run
    from privbo.runs.manifest import RunDirectory
    from privbo.runs.opening import plan_run, planned_requests
    from privbo.runs.record import load
    from privbo.runs.spec import read_spec

    if target.suffix == ".toml":
        if publish_norms is not None or not empirical:
            raise ConfigurationError(f"{target} is a configuration: only --empirical audits it; name a run's directory")
        spec = read_spec(target, load=trust)
        attacked = audit_plan(plan_run(spec), planned_requests(spec), trials=trials)
        found = Audit(name=spec.name, clipping=None, empirical=attacked)
    elif not RunDirectory(target).config_path.exists() and file_of_one_run(target, FACTS) is not None:
        from privbo.cli.clients import clipped_scores

        if empirical or publish_norms is not None or out is not None:
            raise ConfigurationError(f"{target} is a site's folder: name it alone, or the run's directory")
        return clipped_scores(target)
    else:
        require_no_link(RunDirectory(target).private)
        record = load(target, ledger=ledger)
        with record.ledger:
            if publish_norms is not None:
                agree(price_of_norms(record, noise_multiplier=publish_norms), yes=yes)
            here = record.home.clipping_path.exists()  # the attack needs none of what is private
            found = Audit(
                name=record.spec.name,
                published=None if publish_norms is None else publish(record, noise_multiplier=publish_norms),
                empirical=audit_run(record, trials=trials, trust=trust) if empirical else (),
                clipping=audit_clipping(record) if here or not empirical else None,
            )
            if found.published is not None:
                write_json(record.home.path / "published_norms.json", fields_of(found.published))
            out = out or (record.home.private / "audit.html" if here else None)
    return found if out is None else replace(found, page=write_audit(found, out))


@command(app)
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
        typer.Option(
            help="Whose data runs saw: private (the default), public, simulated or proxy; a sweep's file has its own."
        ),
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
) -> object:
    """Utility against epsilon: a sweep of settings over seeds, or runs side by side.

    Cells of a sweep are kept and reused while settings and code are the same; it prints how many, and why others run.
    Over private data only privacy costs are shown unless --private is given, nothing is recommended, and what is to be
    charged is shown and asked for first.
    """
    from privbo.cli import compare as comparing
    from privbo.comparisons.cells import How

    budget, is_sweep = comparing.budget_of(recommend), len(what) == 1 and what[0].suffix == ".toml"
    if trust and not (is_sweep and finished):
        raise ConfigurationError(
            "--trust is for --finished: runs are compared without their code, and a sweep imports its own"
        )
    if not is_sweep:
        if fresh or finished:
            raise ConfigurationError("--fresh and --finished are for a sweep's cells; runs are compared as they are")
        return comparing.compare_runs(what, out=out, data=data, budget=budget, private=private, ledger=ledger)
    if data is not None:
        raise ConfigurationError("--data is for runs; a sweep's file has its own: data = ...")
    if ledger is not None:
        raise ConfigurationError("--ledger is for runs; a sweep names its own: [ledger] in its file")
    if fresh and finished:
        raise ConfigurationError("--fresh runs every cell and --finished none; give one of them")
    if finished and not trust:
        raise ConfigurationError(f"Not importing what {what[0]} names without --trust.")
    try:
        how: How = {"jobs": jobs, "scheduler": scheduler, "fresh": fresh, "finished": finished}
        return comparing.compare_sweep(what[0], out=out, budget=budget, private=private, yes=yes, **how)
    except KeyboardInterrupt:
        say("privbo: interrupted; the same command goes on with what is left", err=True)
        raise typer.Exit(130) from None


@command(app)
def calibrate(
    rounds: Annotated[
        int | None, typer.Option("--releases", "--rounds", help="Number of releases; a run may have more rounds.")
    ] = None,
    sample_rate: Annotated[float | None, typer.Option(help="Probability of taking part.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std over L2 sensitivity.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="The probability that is added to epsilon's bound.")] = 1e-5,
) -> object:
    """Find the one of epsilon, noise multiplier, sample rate and releases that is not given."""
    from privbo.plans.calibration import calibrate as solve

    return solve(
        rounds=rounds, sample_rate=sample_rate, noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta
    )


command(app)(ledger.bundle)
app.command("verify-bundle")(ledger.verify_bundle)


if __name__ == "__main__":
    main()
