"""Callbacks for ``privbo.run(..., on_round=...)`` that follow a run in other tools.

They are told public quantities only: what was released, and its place in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.runs.history import OnRound, Round


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


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[OnRound]:
    """Open a callback that writes TensorBoard events into a folder.

    Raises:
        ConfigurationError: If TensorBoard is not installed.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise ConfigurationError("TensorBoard is not installed; install privbo[tensorboard]") from None
    writer = Writer(str(folder))

    def on_round(event: Round) -> None:
        for name, value in public_scalars(event).items():
            writer.add_scalar(name, value, event.index)

    try:
        yield on_round
    finally:
        writer.close()


@contextmanager
def mlflow(name: str, *, tracking_uri: str | None = None) -> Iterator[OnRound]:
    """Open a callback that logs metrics to a run of MLflow.

    Args:
        name: Name of MLflow's run.
        tracking_uri: Where MLflow keeps it; its own setting by default.

    Raises:
        ConfigurationError: If MLflow is not installed.
    """
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise ConfigurationError("MLflow is not installed; install privbo[mlflow]") from None
    client = MlflowClient(tracking_uri=tracking_uri)
    experiment = client.get_experiment_by_name("privbo")
    home = client.create_experiment("privbo") if experiment is None else experiment.experiment_id
    run = client.create_run(home, run_name=name).info.run_id

    def on_round(event: Round) -> None:
        for key, value in public_scalars(event).items():
            client.log_metric(run, key, value, step=event.index)

    try:
        yield on_round
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run)
