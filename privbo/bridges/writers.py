"""Trackers that follow a run in TensorBoard, MLflow or Weights & Biases.

A tracker is told public quantities only, and no time but the day, because how long rounds take may depend on clients:
rounds through ``privbo.run(..., on_round=tracker.on_round)``, and at the end the run's settings, price, ledger head and
report through ``tracker.finished(record)``::

    with mlflow("first try") as tracker:
        record = privbo.run(..., on_round=tracker.on_round)
        tracker.finished(record)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from privbo.plans.cost import finite
from privbo.protocol.errors import needs
from privbo.protocol.files import flat
from privbo.reports.report import report
from privbo.reports.report_page import document
from privbo.runs.record import Record, Round

_BATCH = 100  # parameters that MLflow takes at once


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """Follows one run in another program's log; every number it hands on is public.

    Attributes:
        metric: Logs a number of a round, by its name.
        facts: Logs what holds for the whole run, by name.
        file: Keeps a copy of a file, where the program keeps files.
    """

    metric: Callable[[str, float, int], object]
    facts: Callable[[Mapping[str, str]], object]
    file: Callable[[Path], object] = lambda _: None

    def on_round(self, event: Round) -> None:
        """Log what a round released; nothing in a round of local work."""
        if (release := event.release) is not None:
            self.metric("release/norm", float(np.linalg.norm(release.values)), event.index)
            self.metric("release/noise_stddev", release.noise_stddev, event.index)
            self.metric("ledger/sequence", float(release.sequence), event.index)

    def finished(self, record: Record) -> None:
        """Log settings, epsilon at its delta after each release, the ledger's head, and the report.

        Epsilon is the plan's at the headline's delta, as on the report's first line.
        """
        found = report(record)
        price = finite(found.smallest_epsilon)
        quoted = {
            "run": found.run,
            "epsilon": "infinite" if price is None else f"{price!r}",
            "delta": f"{found.delta!r}",
            "adjacency": found.adjacency.value,
            "noise": found.noise_source,
            "ledger/head": record.ledger.head,
        }
        self.facts({name: str(value) for name, value in flat(record.spec.to_dict()).items()} | quoted)
        for entry in found.entries:
            is_of_run = entry.release.startswith(f"{found.run}/")
            if is_of_run and (spent := finite(entry.cumulative_epsilon)) is not None:
                self.metric("privacy/epsilon", spent, int(entry.release.rpartition("/")[2]))
        if record.directory is not None:
            self.file(document(found).write(record.home.report_path))
            record.home.settle(record.manifest.created)


def _day() -> float:
    """Seconds from the epoch to the beginning of today (UTC)."""
    return datetime.combine(datetime.now(UTC), datetime.min.time(), UTC).timestamp()


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[Tracker]:
    """Open a tracker that writes TensorBoard events into a folder; TensorBoard keeps no files, so none is copied.

    Raises:
        ConfigurationError: If TensorBoard is not installed.
    """
    with needs("TensorBoard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

    def facts(texts: Mapping[str, str]) -> None:
        rows = "".join(f"| {name} | {text} |\n" for name, text in texts.items())
        writer.add_text("run", f"| | |\n|---|---|\n{rows}", walltime=_day())

    with SummaryWriter(str(folder)) as writer:
        yield Tracker(
            metric=lambda name, value, step: writer.add_scalar(name, value, step, walltime=_day(), new_style=True),
            facts=facts,
        )


@contextmanager
def mlflow(name: str, *, tracking_uri: str | None = None, artifacts: str | None = None) -> Iterator[Tracker]:
    """Open a tracker that logs to a run of MLflow, in its experiment ``privbo``.

    Args:
        name: Name of MLflow's run.
        tracking_uri: Where MLflow keeps it; its own setting by default.
        artifacts: Where a new experiment keeps files; MLflow's own setting by default.

    Raises:
        ConfigurationError: If MLflow is not installed.
    """
    with needs("MLflow", "mlflow"):
        from mlflow import MlflowClient
        from mlflow.entities import Param
    client, day = MlflowClient(tracking_uri=tracking_uri), round(1000 * _day())
    experiment = client.get_experiment_by_name("privbo")
    home = client.create_experiment("privbo", artifacts) if experiment is None else experiment.experiment_id
    run = client.create_run(home, start_time=day, run_name=name).info.run_id

    def facts(texts: Mapping[str, str]) -> None:
        params = [Param(name, text) for name, text in texts.items()]
        for start in range(0, len(params), _BATCH):
            client.log_batch(run, params=params[start : start + _BATCH])

    try:
        yield Tracker(
            metric=lambda name, value, step: client.log_metric(run, name, value, timestamp=day, step=step),
            facts=facts,
            file=lambda path: client.log_artifact(run, str(path)),
        )
    except BaseException:
        client.set_terminated(run, "FAILED", end_time=day)
        raise
    client.set_terminated(run, end_time=day)


@contextmanager
def wandb(project: str, name: str, *, folder: str | Path | None = None, offline: bool = False) -> Iterator[Tracker]:
    """Open a tracker that logs to a run of Weights & Biases.

    Args:
        project: Of the run.
        name: Of the run.
        folder: Where the program keeps its files; its own setting by default.
        offline: Send nothing; ``wandb sync`` sends it later.

    Raises:
        ConfigurationError: If Weights & Biases is not installed.
    """
    with needs("Weights & Biases", "wandb"):
        import wandb as program
    # Neither what clients' code prints nor how long the machine was busy is covered by epsilon.
    quiet = program.Settings(
        console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
    )
    mode = "offline" if offline else "online"
    with program.init(project=project, name=name, dir=folder, mode=mode, settings=quiet) as run:
        yield Tracker(
            metric=lambda name, value, step: run.log({name: value, "round": step}),
            facts=lambda texts: run.config.update(dict(texts)),
            file=lambda path: run.save(str(path), base_path=str(path.parent), policy="now"),
        )
