"""TLS with node authentication: who is not registered, or speaks plaintext, is refused; the numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from privbo.flower.keys import AUTHORITY, make_keys
from privbo.flower.launch import LOOPBACK, free_port
from privbo.protocol.files import read_lines
from tests.deployment.federations import make
from tests.deployment.processes import deployed, keyed, register, start_parties, wait_until
from tests.deployment.reading import in_process, require_same

ROUNDS = 2


@pytest.mark.deployment
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
