"""The two apps Flower loads: the server, which owns door and ledger, and the site, which owns its clients."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from accountant.verify.text import shown
from privbo.door.door import Gather
from privbo.flower.answers import guard, respond
from privbo.flower.messages import ACTION, GUARD
from privbo.flower.registry import public_spec, read_federation, require_guardians, require_hidden
from privbo.flower.transport import Flower, FlowerCommittee
from privbo.reports.report_page import write_report
from privbo.runs.guarded import keep_cards
from privbo.runs.history import Round
from privbo.runs.loop import play
from privbo.runs.manifest import Manifest, RunDirectory
from privbo.runs.opening import open_run, plan_run
from privbo.runs.sources import ForeignAlgorithm


def server_app(home: Path) -> ServerApp:
    """The server's app: runs ``home/run.toml``, or goes on with it where it was interrupted.

    The run config's ``directory`` is the run's directory on the server's machine; the ledger is in it.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(grid, home, RunDirectory(Path(str(context.run_config["directory"]))))

    app.main()(main)
    return app


def client_app(home: Path) -> ClientApp:
    """A site's app, which answers rounds with the site's own clients, or a guardian's, from its own disk.

    The node config's ``site`` names the site's ``site.toml``, ``guardian`` the guardian's ``guardian.toml``.
    """
    app = ClientApp()
    app.query(ACTION)(lambda message, context: respond(message, context, home))
    app.query(GUARD)(lambda message, context: guard(message, context, home))
    return app


def serve(grid: Grid, home: Path, directory: RunDirectory) -> None:
    """Play a run over a grid, from its first open round to the last; write its report.

    Raises:
        ConfigurationError: If a setting is impossible; nothing was touched.
        RunError: If too few sites are there; the run can be resumed.
    """
    spec, federation = public_spec(home), read_federation(home)
    if isinstance(spec.algorithm, ForeignAlgorithm):
        spec = dataclasses.replace(spec, algorithm=spec.algorithm.load())
    federation = federation.checked(spec.problem.n_clients).on_grid(spec)
    require_guardians(federation, spec.privacy)
    require_hidden(spec, federation)
    committee: FlowerCommittee | None = None

    def gather(manifest: Manifest) -> Gather:
        nonlocal committee
        keep_cards(directory, federation.guardians, "Flower")
        committee = FlowerCommittee(grid=grid, federation=federation, directory=directory, manifest=manifest)
        return committee.gather

    run = open_run(spec, plan_run(spec), directory, resume=directory.config_path.exists(), gather=gather)

    def on_round(event: Round) -> None:
        release = event.release
        _print(f"round {event.index}: {'local work' if release is None else f'release {release.sequence}'}")

    transport = Flower(grid=grid, federation=federation, directory=directory, run=run, guardians=committee)
    if committee is not None:
        committee.meet()
    with run.record.ledger:
        if spec.times is not None:
            transport.wait_for_sites()  # before the grid begins: how long they take is not of it
        write_report(play(run, transport, on_round))
    directory.settle(run.record.manifest.created)
    _print(f"finished; ledger and report are in {directory.path}")


def _print(line: str) -> None:
    sys.stdout.write(shown(f"privbo: {line}") + "\n")
    sys.stdout.flush()
