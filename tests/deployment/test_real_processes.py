"""Runs over real processes: TLS and node keys, Flower's own simulation, and guardians that are killed on the way."""

import contextlib
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from accountant.ledger import Ledger
from accountant.verify.auditor import verify_bundle
from privbo.flower.keys import AUTHORITY, make_keys
from privbo.flower.launch import LOOPBACK, free_port
from privbo.protocol.errors import RunError
from privbo.protocol.files import load_arrays, read_lines
from privbo.reports.bundle import write_bundle
from privbo.runs.record import load
from tests.deployment.federations import ALGORITHMS, SITES, make
from tests.deployment.processes import deployed, keyed, register, start_parties, wait_until
from tests.deployment.reading import in_process, require_same
from tests.guardians.test_flower import NAMES, guarded, guardian_ledger

pytestmark = pytest.mark.deployment
ROUNDS = 2


def test_only_registered_keys_take_part_and_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    """Nor does a site talk to a server that its authority did not sign."""
    keys, public = keyed(tmp_path)
    stranger = make_keys(tmp_path / "stranger", sites=["stranger"])
    federation = make(tmp_path, "dp-fts-de", rounds=ROUNDS, keys=public, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, keys) as deployment:
        register(deployment, keys)
        site = federation.site_file("north")
        deployment.start_supernode("stranger", site, key=stranger / "stranger.key")
        deployment.start_supernode("keyless", site)

        def start(name: str, *options: str) -> None:
            rest = ["--superlink", deployment.address, "--host", LOOPBACK, "--port", str(free_port())]
            deployment.start(name, ["flower-supernode", *rest, "--node-config", f'site="{site}"', *options])

        start("plaintext", "--insecure")
        foreign = ["--root-certificates", str(stranger / AUTHORITY), "--max-retries", "2"]
        start("deceived", *foreign, "--auth-supernode-private-key", str(keys / "north.key"))
        logs = {name: deployment.log(name) for name in ("stranger", "keyless", "plaintext", "deceived")}
        refused = "CERTIFICATE_VERIFY_FAILED"
        wait_until(lambda: refused in logs["deceived"].read_text().upper().replace(" ", "_"), "it refuses the server")
        start_parties(deployment, federation, keys)
        deployment.play(federation.home, timeout=900)
        assert "SuperNode ID:" in deployment.log("north").read_text()
        for name, log in logs.items():
            assert "SuperNode ID:" not in log.read_text(), name
            assert "Receiving:" not in log.read_text(), name
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert [row["asked"] for row in rows] == [3] * (ROUNDS + 1)
    assert not any(row["refused"] for row in rows)
    require_same(federation, in_process("dp-fts-de", rounds=ROUNDS))


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra flower-sim)")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_flowers_simulation_gives_the_numbers_of_one_process(name: str, tmp_path: Path) -> None:
    federation = make(tmp_path, name, rounds=2, simulated=True, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, simulation=True) as deployment:
        nodes = f"num-supernodes={len(SITES)} client-resources-num-cpus=1"
        deployment.play(federation.home, "--federation-config", nodes, timeout=900)
    kept = federation.run.private / "sites"
    found = [load_arrays(next((kept / site).glob("*/evaluations.npz"))) for site in SITES]
    require_same(federation, in_process(name, rounds=2), found)


@pytest.mark.slow
def test_killed_guardians_start_again_and_no_round_gets_two_noises(tmp_path: Path) -> None:
    """A guardian's SuperNode is killed (SIGKILL) while the run waits for it; its ledger and bytes go on."""
    federation = guarded(tmp_path, seed=None, start_timeout=120.0, round_timeout=40.0)
    with deployed(federation) as deployment:
        start_parties(deployment, federation)

        def kill_one(name: str) -> None:
            deadline = time.monotonic() + 200
            while not list((tmp_path / name / "kept").glob("*/rounds/000000.json")) and time.monotonic() < deadline:
                time.sleep(0.05)
            deployment.kill(name)
            deployment.start_supernode(name, tmp_path / name / "guardian.toml")

        threading.Thread(target=kill_one, args=(NAMES[1],), daemon=True).start()
        for _ in range(6):
            with contextlib.suppress(RunError):  # it stopped with a word; the same command goes on
                deployment.play(federation.home, timeout=500)
                break
    assert verify_bundle(write_bundle(federation.run.path).path).verified
    record = load(federation.run.path)
    assert len(record.ledger.entries()) == record.plan.releases > 0
    for name in NAMES:
        with guardian_ledger(federation, name) as book:
            stored = book.release_rows()
            assert len(stored) == len(book.entries()) == len(record.ledger.entries())
    with Ledger.open(federation.run.ledger_path) as book:
        assert len(book.release_rows()) == len(book.entries())
