"""Runs over real processes: TLS and node keys, Flower's own simulation, and sites and a server that are killed."""

import os
import signal
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

from accountant.ledger import Ledger
from privbo.flower.keys import AUTHORITY, make_keys
from privbo.flower.launch import LOOPBACK, Deployment, free_port
from privbo.protocol.files import load_arrays, read_lines
from tests.deployment.federations import ALGORITHMS, SITES, Federation, in_process, make, releases, require_same, sites
from tests.deployment.processes import deployed, keyed, kill_marked, register, rounds_played, start_parties, wait_until

pytestmark = pytest.mark.deployment
ROUNDS = 2


def test_only_registered_keys_take_part_and_the_numbers_are_those_of_one_process(tmp_path) -> None:
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
def test_flowers_simulation_gives_the_numbers_of_one_process(name: str, tmp_path) -> None:
    federation = make(tmp_path, name, rounds=2, simulated=True, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, simulation=True) as deployment:
        nodes = f"num-supernodes={len(SITES)} client-resources-num-cpus=1"
        deployment.play(federation.home, "--federation-config", nodes, timeout=900)
    kept = federation.run.private / "sites"
    found = [load_arrays(next((kept / site).glob("*/evaluations.npz"))) for site in SITES]
    require_same(federation, in_process(name, rounds=2), found)


# ---- killed with -9 in mid-round: a site comes back with its history, a server goes on from its ledger


def start_run(deployment: Deployment, federation: Federation) -> None:
    done = deployment.flwr("run", str(federation.home), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def reached(federation: Federation, site: str) -> bool:
    return federation.hold(site).with_suffix(".reached").exists()


def answered(federation: Federation, site: str, round_: int) -> bool:
    return any((federation.root / site / "kept").glob(f"*/sent/{round_:06d}.npz"))


@contextmanager
def run_held_in_mid_round(tmp_path):
    """A run under way: north has answered round 0 and waits in the middle of a later one."""
    keys, public = keyed(tmp_path)
    federation = make(tmp_path, held=True, keys=public, round_timeout=60.0, start_timeout=600.0)
    with deployed(federation, keys) as deployment:
        register(deployment, keys)
        start_parties(deployment, federation, keys)
        start_run(deployment, federation)
        wait_until(lambda: answered(federation, "north", 0), "north has answered round 0")
        federation.hold("north").touch()
        wait_until(lambda: reached(federation, "north"), "north is in the middle of a round")
        yield federation, keys, deployment


def loaded(federation: Federation, site: str) -> list[int]:
    """Processes that loaded a site's problem, in order."""
    return [int(line) for line in federation.hold(site).with_suffix(".loaded").read_text().split()]


def test_killed_sites_are_missed_for_a_while_and_come_back_with_their_history(tmp_path) -> None:
    """First the process that has loaded the data is killed, in the next round the SuperNode and all its others."""
    with run_held_in_mid_round(tmp_path) as (federation, keys, deployment):
        lost = rounds_played(federation)
        (first,) = loaded(federation, "north")
        federation.hold("north").with_suffix(".reached").unlink()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: reached(federation, "north"), "north's next process is in the middle of the next round")
        assert rounds_played(federation) == lost + 1
        assert len(set(loaded(federation, "north"))) == 2
        deployment.kill("north")
        wait_until(lambda: answered(federation, "south", lost + 1), "south has answered that round")
        federation.hold("south").touch()  # the rounds that follow wait for north's return
        federation.hold("north").unlink()
        wait_until(lambda: rounds_played(federation) > lost + 1, "the round is over without north")
        come_back(deployment, federation, "north", keys)
        federation.hold("south").unlink()
        wait_until(federation.run.report_path.exists, "the run is over", timeout=900)
    rows = read_lines(federation.run.private / "transport.jsonl")
    missed = [row["round"] for row in rows if row["answered"] == ["south", "west"]]
    assert missed[:2] == [lost, lost + 1]
    assert rows[-1]["answered"] == sorted(SITES)
    assert [len(loaded(federation, site)) for site in ("north", "south", "west")] == [3, 1, 1]
    north, south = sites(federation)[:2]
    assert 0 in north["rounds"]
    assert not {lost, lost + 1} & set(north["rounds"])
    assert north["rounds"].max() == south["rounds"].max() == len(rows) - 1
    made, whole = releases(federation), in_process().releases
    assert [r.noise_stddev for r in made][: lost + 1] == [r.noise_stddev for r in whole][: lost + 1]
    np.testing.assert_array_equal(made[0].values, whole[0].values)


def come_back(deployment: Deployment, federation: Federation, name: str, keys) -> None:
    """Start a site again as a service manager does: Flower turns it away until it has missed the dead one."""
    log = deployment.log(name)
    seen = log.read_text().count("SuperNode ID:")

    def connected() -> bool:
        process = deployment.processes.get(name)
        if process is None or process.poll() is not None:
            deployment.start_supernode(name, federation.site_file(name), key=keys / f"{name}.key")
        return log.read_text().count("SuperNode ID:") > seen

    wait_until(connected, f"{name} is connected again")


def test_a_killed_server_goes_on_from_its_ledger(tmp_path) -> None:
    with run_held_in_mid_round(tmp_path) as (federation, _, deployment):
        round_ = rounds_played(federation)
        assert kill_marked(deployment, "flwr-serverapp")
        deployment.kill("superlink")
        paid = charges(federation)
        assert list(paid.values()) == [True] * round_ + [False]  # the open round is paid, nothing of it was released
        federation.hold("north").unlink()
        deployment.start_superlink()
        start_run(deployment, federation)
        wait_until(federation.run.report_path.exists, "the run is over", timeout=900)
    require_same(federation, in_process())
    assert list(paid) == list(charges(federation))[: len(paid)]
    rows = [row for row in read_lines(federation.run.history_path) if row["released"]]
    assert [row["sequence"] for row in rows] == [release.sequence for release in releases(federation)]


def charges(federation: Federation) -> dict[str, bool]:
    """Every charge in order, and whether its release is stored."""
    with Ledger.open(federation.run.ledger_path) as ledger:
        assert ledger.verify().ok
        ids = [entry.release_id for entry in ledger.entries()]
        assert len(set(ids)) == len(ids)
        return {identity: ledger.stored_release(identity) is not None for identity in ids}
