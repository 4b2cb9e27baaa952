"""The two apps Flower loads: the server, which owns door and ledger, and the site, which owns its clients."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from accountant.ledger.chain import Position, encode_rows
from accountant.verify.text import shown
from privbo.door.door import Gather
from privbo.flower.answers import guard, respond
from privbo.flower.messages import ACTION, GUARD
from privbo.flower.registry import public_spec, read_federation, require_guardians, require_hidden
from privbo.flower.transport import Flower, FlowerCommittee
from privbo.protocol.files import append_line, read_lines
from privbo.protocol.messages import Standing
from privbo.reports.report_page import write_report
from privbo.runs.evidence import declared_by, plan_name, plan_of
from privbo.runs.guarded import keep_cards, keeping
from privbo.runs.history import Round
from privbo.runs.loop import play
from privbo.runs.manifest import Manifest, RunDirectory
from privbo.runs.opening import Run, open_run, plan_run
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
    committees = list[FlowerCommittee]()

    def gather(manifest: Manifest) -> Gather:
        keep_cards(directory, federation.guardians, "Flower")
        committee = FlowerCommittee(
            grid=grid,
            federation=federation,
            run=manifest.run_id,
            plan=plan_name(declared_by(manifest.plan, run=manifest.run_id, settings=manifest.spec.digest())),
            public_seed=manifest.public_seed,
            sites=lambda key: federation.has_keys and federation.site_with(key) is not None,
            note=keeping(directory),
        )
        committees.append(committee)
        return committee.gather

    run = open_run(spec, plan_run(spec), directory, resume=directory.config_path.exists(), gather=gather)
    seen, traffic = directory.countersigned_path, directory.private / "transport.jsonl"
    seen.touch()  # whether it is there shall not tell whether any site was
    transport = Flower(
        grid=grid,
        run=run.record.run_id,
        public_seed=run.setting.public_seed,
        federation=federation,
        note=lambda row: append_line(traffic, row),
        chain=lambda standing, place: _chain(run, standing, place),
        receipt=lambda site, place: append_line(seen, {"site": site} | place, durable=True),
        seen={str(row["site"]): (int(row["sequence"]), str(row["head"])) for row in read_lines(seen)},
        apart=lambda: [node for committee in committees for node in committee.nodes.values()],
    )
    for committee in committees:
        committee.meet()
    with run.record.ledger:
        if spec.times is not None:
            transport.wait_for_sites()  # before the grid begins: how long they take is not of it
        write_report(play(run, transport, _print_round))
    directory.settle(run.record.manifest.created)
    _print(f"finished; ledger and report are in {directory.path}")


def _chain(run: Run, standing: Standing, seen: Position | None) -> bytes:
    """Rows of the run's ledger that a site lacks: from its last head on, from the run's plan on if that is not there.

    The last row is always among them: it is the round's charge.
    """
    book = run.record.ledger.book()
    start = plan_of(run.record.manifest, book).sequence - 1
    if seen is not None and seen[0] > start and book.digest_at(seen[0]) == seen[1]:
        start = min(seen[0], standing.sequence - 1)
    return encode_rows(book.rows[start : standing.sequence])


def _print_round(event: Round) -> None:
    _print(f"round {event.index}: {'local work' if event.release is None else f'release {event.release.sequence}'}")


def _print(line: str) -> None:
    sys.stdout.write(shown(f"privbo: {line}") + "\n")
    sys.stdout.flush()
