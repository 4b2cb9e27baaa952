"""Ways in and out: Parquet, TensorBoard, MLflow, Optuna."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import privbo as pb
from tests.builders import same_releases
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


def followed(opened, home) -> tuple[pb.Record, set[float]]:
    """A run that a tracker follows, and the numbers of its private side."""
    with opened as tracker:
        result = small_run(home, on_round=tracker.on_round)
        tracker.finished(result)
    return result, private_folder_numbers(home / "private")


def test_tensorboard_gets_every_release(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from privbo.bridges.writers import tensorboard

    result, private = followed(tensorboard(tmp_path / "events"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    seen = [event.tensor_proto.float_val[0] for event in events.Tensors("release/norm")]
    assert seen == pytest.approx([float(np.linalg.norm(r.values)) for r in result.releases], rel=1e-6)
    measured = {"release/norm", "release/noise_stddev", "ledger/sequence", "privacy/epsilon"}
    assert set(events.Tags()["tensors"]) == measured | {"run/text_summary"}
    assert {e.wall_time % 86_400 for name in measured for e in events.Tensors(name)} == {0.0}  # a day and no time
    assert {path.stat().st_mtime % 86_400 for path in (tmp_path / "run").glob("*.*")} == {0.0}
    (said,) = events.Tensors("run/text_summary")
    assert f"| ledger/head | {result.ledger.head} |" in said.tensor_proto.string_val[0].decode()
    assert leaks((tmp_path / "events").iterdir(), private) == []


@pytest.mark.filterwarnings("ignore")  # MLflow's own deprecations are not ours to fix
def test_mlflow_gets_every_release(tmp_path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from privbo.bridges.writers import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    opened = mlflow("small", tracking_uri=uri, artifacts=(tmp_path / "artifacts").as_uri())
    result, private = followed(opened, tmp_path / "run")
    client = MlflowClient(tracking_uri=uri)
    run = client.search_runs([client.get_experiment_by_name("privbo").experiment_id])[0]
    assert run.info.status == "FINISHED"
    norms = client.get_metric_history(run.info.run_id, "release/norm")
    assert [norm.value for norm in norms] == pytest.approx([float(np.linalg.norm(r.values)) for r in result.releases])
    stamps = {norm.timestamp for norm in norms} | {run.info.start_time, run.info.end_time}
    assert {stamp % 86_400_000 for stamp in stamps} == {0}
    found = pb.report(result)
    names = ("ledger/head", "privacy.noise_multiplier", "epsilon", "delta")
    told = (result.ledger.head, result.spec.privacy.noise_multiplier, found.smallest_epsilon, found.delta)
    assert [run.data.params[name] for name in names] == list(map(str, told))
    spent = [metric.value for metric in client.get_metric_history(run.info.run_id, "privacy/epsilon")]
    assert spent == pytest.approx([entry.cumulative_epsilon for entry in found.entries])
    assert [path.name for path in (tmp_path / "artifacts").rglob("*.html")] == ["report.html"]
    assert leaks([tmp_path / "mlflow.db"], private) == []


@pytest.mark.filterwarnings("ignore")  # W&B's own deprecations are not ours to fix
def test_weights_and_biases_gets_every_release(tmp_path) -> None:
    """Offline: what would be sent lies in a file."""
    pytest.importorskip("wandb")
    from privbo.bridges.writers import wandb

    result, private = followed(wandb("privbo", "small", folder=tmp_path, offline=True), tmp_path / "run")
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    said = kept.read_bytes()
    assert result.ledger.head.encode() in said
    assert b"release/norm" in said
    assert [path.name for path in tmp_path.glob("wandb/offline-run-*/files/*.html")] == ["report.html"]
    assert leaks([kept], private) == []


def test_a_callback_on_the_clients_side_is_told_values_and_its_errors_change_nothing(tmp_path) -> None:
    seen: list[tuple[int, int]] = []

    def follow(event) -> None:
        seen.append((event.index, int(np.isfinite(event.clients.values).sum())))
        if event.clients.values.max() > 0.5:
            raise (ValueError if event.index % 2 else KeyboardInterrupt)("too good")

    without = pb.run(problem(score), ALGORITHM, **SETTINGS)
    told = pb.run(problem(score), ALGORITHM, on_private_round=follow, **SETTINGS)
    same_releases(told, without)
    assert [index for index, _ in seen] == list(range(5))
    assert seen[-1][1] == np.isfinite(told.clients.values).sum()


@pytest.fixture
def optuna():
    """Optuna, which prints nothing."""
    found = pytest.importorskip("optuna")
    found.logging.set_verbosity(found.logging.CRITICAL)
    return found


def test_distributions_there_and_back(optuna) -> None:
    assert pb.optuna.space_of(pb.optuna.distributions_of(SPACE)) == SPACE


SETTINGS: dict = {"privacy": pb.Privacy(noise_multiplier=1.0, noise="simulation"), "rounds": 4, "seed": 5}
ALGORITHM = pb.SharedPrior(n_features=12, release_when="always")


def problem(objective: object) -> pb.Problem:
    space = {"x": pb.Real(0.0, 1.0), "n": pb.Int(1, 64, log=True), "kind": pb.Categorical(("a", "b"))}
    return pb.Problem(space=space, objective=objective, n_clients=2)


def score(client: int, params: dict) -> float:
    return 1.0 - (params["x"] - 0.3) ** 2 - 0.1 * (params["kind"] == "b") - 0.001 * params["n"] - 0.01 * client


def suggested(trial) -> dict:
    return {
        "x": trial.suggest_float("x", 0.0, 1.0),
        "n": trial.suggest_int("n", 1, 64, log=True),
        "kind": trial.suggest_categorical("kind", ["a", "b"]),
    }


def begun(root, rounds: int = 4) -> object:
    """A run whose clients are asked through its site."""
    return pb.start(problem("ask"), ALGORITHM, directory=root / "run", **SETTINGS | {"rounds": rounds})


def tuned(optuna, run, objective, *, direction: str = "maximize", pruner=None, **settings) -> list:
    """A study per client, in a thread each; they stop when the run is over."""

    def one(client: int) -> object:
        sampler = pb.optuna.FederatedSampler(run.site, client=client)
        study = optuna.create_study(sampler=sampler, direction=direction, pruner=pruner)
        study.optimize(lambda trial: objective(client, trial), **settings)
        return study

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, range(2)))


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_studies_whose_points_come_from_a_federation_make_the_run_of_a_called_objective(direction, optuna, tmp_path):
    sign = 1.0 if direction == "maximize" else -1.0
    expected = pb.run(problem(score), ALGORITHM, **SETTINGS)
    run = begun(tmp_path)
    studies = tuned(optuna, run, lambda c, trial: sign * score(c, suggested(trial)), direction=direction)
    record = run.result()
    np.testing.assert_array_equal(record.clients.units, expected.clients.units)
    same_releases(record, expected)
    assert [sign * study.best_value for study in studies] == [record.best(client).value for client in range(2)]
    back = pb.optuna.study_of(tmp_path / "run", client=1)
    assert [trial.params for trial in back.trials] == [trial.params for trial in studies[1].trials]
    assert back.best_value == sign * studies[1].best_value
    assert "params_kind" in back.trials_dataframe().columns


def test_workers_of_one_study_never_have_the_same_trial(optuna, tmp_path) -> None:
    """Four threads per study, of which most wait: a client asks for its first points at once, then one by one."""
    expected = pb.run(problem(score), ALGORITHM, **SETTINGS)
    run, made = begun(tmp_path), list[int]()

    def objective(client: int, trial) -> float:
        value = score(client, suggested(trial))
        made.append(client)
        return value + 1e-9 * trial.number  # told twice, a trial would be told two values

    tuned(optuna, run, objective, n_jobs=4)
    record = run.result()
    assert len(made) == int(np.isfinite(expected.clients.values).sum())
    assert record.clients.values.shape == expected.clients.values.shape


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_pruned_trials_count_with_their_last_value_and_failed_ones_are_told_as_failures(optuna, tmp_path) -> None:
    run, pruned = begun(tmp_path, rounds=2), list[float]()

    def objective(_client: int, trial) -> float:
        value = score(0, suggested(trial))
        for step in range(3):
            trial.report(value - 1.0 / (step + 1), step)
            if trial.number == 1:
                raise ValueError("out of memory")
            if trial.should_prune():
                pruned.append(value - 1.0 / (step + 1))
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.ThresholdPruner(lower=0.25, n_warmup_steps=0)
    tuned(optuna, run, objective, pruner=pruner, catch=(ValueError,))
    record, trials = run.result(), run.site.trials()
    assert pruned
    assert set(pruned) <= {trial.value for trial in trials}
    assert all(trial.steps for trial in trials)
    assert record.failures
    assert not np.isfinite(record.clients.values).all()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_study_with_other_bounds_than_the_runs_is_refused_at_its_first_trial(optuna, tmp_path) -> None:
    wide = pb.Problem(space={"x": pb.Real(0, 1)}, objective="ask", n_clients=1)
    run = pb.start(wide, ALGORITHM, directory=tmp_path / "run", **SETTINGS | {"rounds": 2})
    study = optuna.create_study(sampler=pb.optuna.FederatedSampler(run.site), direction="minimize")
    with pytest.raises(pb.ConfigurationError, match="the same bounds"):
        study.optimize(lambda trial: trial.suggest_float("x", 0.0, 2.0))
    again = optuna.create_study(sampler=pb.optuna.FederatedSampler(run.site), direction="minimize")
    with pytest.raises(SystemExit):  # after which Optuna tells its sampler nothing
        again.optimize(lambda trial: sys.exit(str(trial.suggest_float("x", 0.0, 1.0))))
    again.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0))  # the trial that waited is told here
    assert len(again.trials) == 1 + len(run.result().clients.values[0])


def test_what_a_study_can_not_be_is_refused(optuna, tmp_path) -> None:
    run = begun(tmp_path, rounds=1)
    for client, said in ((None, "name it"), (7, "client=7 is not here")):
        with pytest.raises(pb.ConfigurationError, match=said):
            pb.optuna.FederatedSampler(run.site, client=client)
    sampler = pb.optuna.FederatedSampler(run.site, client=0)
    several = optuna.create_study(sampler=sampler, directions=["maximize", "minimize"])
    run.site.ask()
    with pytest.raises(pb.ConfigurationError, match="2 objectives"):
        several.optimize(lambda trial: (suggested(trial)["x"], 0.0), n_trials=1)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for suggest, said in (
        (lambda trial: trial.suggest_float("z", 0.0, 1.0), "suggests z="),
        (lambda trial: float(trial.suggest_categorical("kind", ["b", "a"]) == "a"), "suggests kind="),
        (lambda trial: trial.suggest_float("x", 0.0, 1.0), "asks for .* suggest all of them"),
        (lambda _trial: 1.0, "suggest the run's parameters"),
    ):
        with pytest.raises(pb.ConfigurationError, match=said):
            study.optimize(suggest, n_trials=1)
    study.enqueue_trial({"x": 0.123})
    with pytest.raises(pb.ConfigurationError, match=r"evaluated {'x': 0.123.* asks for"):
        study.optimize(lambda trial: score(0, suggested(trial)), n_trials=1)
    while trials := run.site.ask():
        for trial in trials:
            run.site.tell(trial, 0.5)
    before = len(study.trials)
    study.optimize(lambda trial: score(0, suggested(trial)), n_trials=3)  # as a worker that waited while the run ended
    assert [trial.state.name for trial in study.trials[before:]] == ["PRUNED"]
    with pytest.raises(pb.RunError, match="the run is over"):
        suggested(study.ask())
    assert not any(trial.failure for trial in run.site.trials())  # a mistaken study costs no trial
