"""Runs and private sweeps whose population's ledger is in a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg")

import privbo as pb
from accountant.errors import BudgetExceeded, LedgerError
from accountant.ledger import Ledger
from privbo.cli.main import app
from privbo.comparisons.sweep import run_sweep
from privbo.comparisons.sweep_file import read_sweep
from tests.accountant.postgres_server import Server
from tests.cli.test_cli import toml
from tests.comparisons.test_compare import PRIVATE


def written(config: Path, path: str, **ledger: object) -> None:
    """The small problem's configuration on a ledger."""
    ledger = {"path": path, "population": "ward", "epsilon": 2.5, "delta": 1e-5} | ledger
    config.write_text(toml(rounds=2, privacy={"noise_multiplier": 4.0}, ledger=ledger))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


def command(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def test_runs_share_a_database_and_are_refused_together(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, address = tmp_path / "run.toml", server.address("ward", tmp_path / "ward.commits")
    written(config, address)
    with pytest.raises(LedgerError, match="ledger make"):
        command("run", config, "--out", tmp_path / "early")
    command("ledger", "make", config, "--owner", server.url("owner"), "--trust")
    assert "ward.commits" in capsys.readouterr().out
    for name in ("first", "second"):
        command("run", config, "--out", tmp_path / name)
    with pytest.raises(BudgetExceeded):
        command("run", config, "--out", tmp_path / "third")
    command("ledger", "verify", tmp_path / "second")
    record = pb.load(tmp_path / "first")
    with record.ledger as ledger:
        assert ledger.guarantees
        assert len({entry.run for entry in ledger.entries()}) == 2
    written(config, str(tmp_path / "file.sqlite"))
    with pytest.raises(pb.ConfigurationError, match="is a file"):
        command("ledger", "make", config, "--owner", server.url("owner"), "--trust")


def test_a_sweep_over_private_data_pays_into_a_database_and_not_into_a_file_of_a_cluster(
    server: Server, tmp_path: Path
) -> None:
    address, config = server.address("sweep", tmp_path / "sweep.commits"), tmp_path / "one.toml"
    written(config, address, epsilon=20.0)
    command("ledger", "make", config, "--owner", server.url("owner"), "--trust", "--set", "ledger.rule=gaussian")
    path = tmp_path / "sweep.toml"
    bound = 'epsilon = 20.0\ndelta = 1e-5\nrule = "gaussian"\n'
    path.write_text(PRIVATE.format(path=tmp_path / "people.sqlite", bound=bound))
    with pytest.raises(pb.ConfigurationError, match="PostgreSQL"):
        run_sweep(read_sweep(path), tmp_path / "out", scheduler="tcp://127.0.0.1:1")
    assert not (tmp_path / "people.sqlite").exists()
    path.write_text(PRIVATE.format(path=address, bound=bound).replace("seeds = 2", "seeds = 1"))
    with pytest.raises(pb.ConfigurationError, match="does not answer"):
        run_sweep(read_sweep(path), tmp_path / "out", scheduler="tcp://127.0.0.1:1")
    found = run_sweep(read_sweep(path), tmp_path / "out", jobs=1)
    with Ledger.open(address) as ledger:
        assert len({reservation.run for reservation in ledger.book().reservations}) == 2
        assert ledger.verify().ok
    assert found.comparisons[0].total is not None
