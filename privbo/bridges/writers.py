"""Trackers that follow a run in TensorBoard, MLflow or Weights & Biases.

A tracker is told public quantities only, and no time but the day, because how long rounds take may depend on clients:
rounds through ``privbo.run(..., on_round=tracker.on_round)``, and at the end the run's settings, price, ledger head and
report through ``tracker.finished(record)``::

    with mlflow("first try") as tracker:
        record = privbo.run(..., on_round=tracker.on_round)
        tracker.finished(record)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privbo.plans.cost import finite
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import flat
from privbo.reports.report import report
from privbo.reports.report_page import document
from privbo.runs.history import Round
from privbo.runs.record import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run as WandbRun

_BATCH = 100  # parameters that MLflow takes at once


class Tool(Protocol):
    """Another program's log."""

    def metric(self, name: str, value: float, step: int) -> None:
        """Log a number of a round."""
        ...

    def facts(self, texts: Mapping[str, str]) -> None:
        """Log what holds for the whole run, by name."""
        ...

    def file(self, path: Path) -> None:
        """Keep a copy of a file, where the program keeps files."""
        ...


@dataclass(frozen=True)
class Tracker:
    """Follows one run; every number it hands on is public.

    Attributes:
        tool: Where to.
    """

    tool: Tool

    def on_round(self, event: Round) -> None:
        """Log what a round released; nothing in a round of local work."""
        for name, value in public_scalars(event).items():
            self.tool.metric(name, value, event.index)

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
        self.tool.facts({name: str(value) for name, value in flat(record.spec.to_dict()).items()} | quoted)
        for entry in found.entries:
            if (spent := finite(entry.cumulative_epsilon)) is not None:
                self.tool.metric("privacy/epsilon", spent, int(entry.release.rpartition("/")[2]))
        if record.directory is not None:
            self.tool.file(document(found).write(record.home.report_path))
            record.home.settle(record.manifest.created)


def public_scalars(event: Round) -> dict[str, float]:
    """Name the numbers that a round made public; none in a round of local work."""
    release = event.release
    if release is None:
        return {}
    return {
        "release/norm": float(np.linalg.norm(release.values)),
        "release/noise_stddev": release.noise_stddev,
        "ledger/sequence": float(release.sequence),
    }


def _day() -> float:
    """Seconds from the epoch to the beginning of today (UTC)."""
    return datetime.combine(datetime.now(UTC), datetime.min.time(), UTC).timestamp()


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[Tracker]:
    """Open a tracker that writes TensorBoard events into a folder; TensorBoard keeps no files, so none is copied.

    Raises:
        ConfigurationError: If TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigurationError("TensorBoard is not installed; install privbo[tensorboard]") from None
    with SummaryWriter(str(folder)) as writer:
        yield Tracker(_TensorBoard(writer, _day()))


@dataclass(frozen=True)
class _TensorBoard:
    writer: SummaryWriter
    day: float

    def metric(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step, walltime=self.day, new_style=True)

    def facts(self, texts: Mapping[str, str]) -> None:
        rows = "".join(f"| {name} | {text} |\n" for name, text in texts.items())
        self.writer.add_text("run", f"| | |\n|---|---|\n{rows}", walltime=self.day)

    def file(self, path: Path) -> None:
        pass


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
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise ConfigurationError("MLflow is not installed; install privbo[mlflow]") from None
    client = MlflowClient(tracking_uri=tracking_uri)
    experiment = client.get_experiment_by_name("privbo")
    home = client.create_experiment("privbo", artifacts) if experiment is None else experiment.experiment_id
    day = round(1000 * _day())
    run = client.create_run(home, start_time=day, run_name=name).info.run_id
    try:
        yield Tracker(_MLflow(client, run, day))
    except BaseException:
        client.set_terminated(run, "FAILED", end_time=day)
        raise
    client.set_terminated(run, end_time=day)


@dataclass(frozen=True)
class _MLflow:
    client: MlflowClient
    run: str
    day: int

    def metric(self, name: str, value: float, step: int) -> None:
        self.client.log_metric(self.run, name, value, timestamp=self.day, step=step)

    def facts(self, texts: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = [Param(name, text) for name, text in texts.items()]
        for start in range(0, len(params), _BATCH):
            self.client.log_batch(self.run, params=params[start : start + _BATCH])

    def file(self, path: Path) -> None:
        self.client.log_artifact(self.run, str(path))


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
    try:
        import wandb as program
    except ImportError:
        raise ConfigurationError("Weights & Biases is not installed; install privbo[wandb]") from None
    # Neither what clients' code prints nor how long the machine was busy is covered by epsilon.
    quiet = program.Settings(
        console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
    )
    mode = "offline" if offline else "online"
    with program.init(project=project, name=name, dir=folder, mode=mode, settings=quiet) as run:
        yield Tracker(_WeightsAndBiases(run))


@dataclass(frozen=True)
class _WeightsAndBiases:
    run: WandbRun

    def metric(self, name: str, value: float, step: int) -> None:
        self.run.log({name: value, "round": step})

    def facts(self, texts: Mapping[str, str]) -> None:
        self.run.config.update(dict(texts))

    def file(self, path: Path) -> None:
        self.run.save(str(path), base_path=str(path.parent), policy="now")
