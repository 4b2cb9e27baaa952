"""Ways in and out: Parquet, TensorBoard, MLflow, Optuna."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import Setting
from privbo.reports.history import write_parquet
from tests.conformance.cases import bumps
from tests.reports.leaks import leaks, private_folder_numbers
from tests.reports.runs import small_run

SPACE = pb.Space(
    {
        "x": pb.Real(0.0, 1.0),
        "s": pb.Real(0.0, 1.0, step=0.25),
        "b": pb.Int(16, 64, step=16),
        "n": pb.Int(1, 64, log=True),
        "kind": pb.Categorical(("a", "b")),
    }
)


def test_history_as_parquet(tmp_path: Path) -> None:
    import pandas as pd

    result = small_run(tmp_path / "run", rounds=3)
    back = pd.read_parquet(write_parquet(result, tmp_path / "history.parquet"))
    assert list(back["sequence"]) == [2, 3, 4]  # the first row binds the plan
    assert back["norm"].iloc[2] == pytest.approx(np.linalg.norm(result.releases[2].values))
    assert back["cumulative_epsilon"].is_monotonic_increasing
    assert back["digest"].iloc[-1] == result.ledger.head


def test_tensorboard_gets_every_release(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from privbo.bridges.writers import tensorboard

    with tensorboard(tmp_path / "events") as on_round:
        result = small_run(tmp_path / "run", rounds=3, on_round=on_round)
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    seen = [event.tensor_proto.float_val[0] for event in events.Tensors("release/norm")]
    assert seen == pytest.approx([float(np.linalg.norm(r.values)) for r in result.releases], rel=1e-6)
    assert set(events.Tags()["tensors"]) == {"release/norm", "release/noise_stddev", "ledger/sequence"}
    assert leaks((tmp_path / "events").iterdir(), private_folder_numbers(tmp_path / "run" / "private")) == []


@pytest.mark.filterwarnings("ignore")  # MLflow's own deprecations are not ours to fix
def test_mlflow_gets_every_release(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from privbo.bridges.writers import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with mlflow("small", tracking_uri=uri) as on_round:
        result = small_run(tmp_path / "run", rounds=3, on_round=on_round)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("privbo")
    run = client.search_runs([experiment.experiment_id])[0]
    assert run.info.status == "FINISHED"
    seen = [metric.value for metric in client.get_metric_history(run.info.run_id, "release/norm")]
    assert seen == pytest.approx([float(np.linalg.norm(r.values)) for r in result.releases])
    assert leaks([tmp_path / "mlflow.db"], private_folder_numbers(tmp_path / "run" / "private")) == []


def test_distributions_there_and_back() -> None:
    pytest.importorskip("optuna")
    from privbo.bridges.optuna import distributions_of, space_of

    assert space_of(distributions_of(SPACE)) == SPACE


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_an_agents_own_study_finds_the_optimum(direction: str) -> None:
    """Thompson sampling on a smooth bump, 14 trials; random search with as many reaches 0.9 in few of its seeds."""
    optuna = pytest.importorskip("optuna")
    from privbo.bridges.optuna import FTSSampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = pb.Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    sign = 1.0 if direction == "maximize" else -1.0

    def objective(trial) -> float:
        params = {name: trial.suggest_float(name, 0.0, 1.0) for name in ("x", "y")}
        return sign * float(bumps(np.array([0]), space.encode(params)[None])[0])

    setting = Setting(space=space, n_clients=7, rounds=20, public_seed=1)
    sampler = FTSSampler(pb.DPFTSDE(n_regions=1, n_init=2, n_features=8), setting, client=3, seed=5, n_init=2)
    study = optuna.create_study(sampler=sampler, direction=direction)
    study.optimize(objective, n_trials=14)
    assert sign * study.best_value > 0.97
    again = optuna.create_study(sampler=sampler, direction=direction)
    again.optimize(objective, n_trials=3)
    assert [t.params for t in again.trials] == [t.params for t in study.trials[:3]]


def test_the_sampler_follows_what_the_federation_released(tmp_path: Path) -> None:
    """With exploration switched off, the study's third point is the maximiser every agent would take."""
    pytest.importorskip("optuna")
    import optuna

    from privbo.bridges.optuna import FTSSampler
    from privbo.runs.replay import replay

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from privbo.algorithms.thompson.exploration import Exploration

    algorithm = pb.DPFTSDE(n_regions=1, n_init=2, n_features=8, exploration=Exploration(power=0.0))
    result = small_run(tmp_path / "run", algorithm, privacy=pb.Privacy(noise_multiplier=0.1), rounds=3)
    asks = [ask for ask, _ in replay(result)]
    shared = next(ask.broadcast for ask in asks if ask.broadcast.round == 1)
    sampler = FTSSampler(
        algorithm, result.spec.setting(result.manifest.public_seed), client=2, seed=9, n_init=2, shared=lambda: shared
    )
    study = optuna.create_study(sampler=sampler, direction="maximize")

    def objective(trial) -> float:
        return trial.suggest_float("x", 0.0, 1.0) + trial.suggest_float("y", 1e-3, 1e1, log=True)

    study.optimize(objective, n_trials=3)
    history = result.clients
    taken = history.units[2, list(history.rounds).index(1)]
    space = result.spec.setting(result.manifest.public_seed).space
    assert space.encode(study.trials[2].params) == pytest.approx(taken, abs=1e-9)


def test_released_quantities_as_a_study(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from privbo.bridges.optuna import export_releases

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    result = small_run(tmp_path / "run", rounds=3)
    storage = f"sqlite:///{tmp_path}/optuna.db"
    export_releases(result, storage=storage, study_name="small")
    back = optuna.load_study(study_name="small", storage=storage)
    assert [t.value for t in back.trials] == pytest.approx([float(np.linalg.norm(r.values)) for r in result.releases])
    assert back.user_attrs["adjacency"] == "zero-out"
    assert back.trials[-1].user_attrs["digest"] == result.ledger.head
    assert leaks([tmp_path / "optuna.db"], private_folder_numbers(tmp_path / "run" / "private")) == []
