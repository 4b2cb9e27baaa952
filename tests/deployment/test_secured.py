"""TLS with node authentication: who is not registered, or speaks plaintext, is refused; the numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.flower.keys import make_keys
from privbo.flower.launch import LOOPBACK, free_port
from privbo.protocol.files import read_lines
from tests.conformance.small import problem
from tests.deployment.federations import make
from tests.deployment.processes import deployed, keyed, register, start_sites, wait_until
from tests.deployment.reading import queried, releases, sites

pytestmark = pytest.mark.deployment
ROUNDS = 2


def test_only_registered_keys_take_part_and_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    keys, public = keyed(tmp_path)
    stranger = make_keys(tmp_path / "stranger", sites=["stranger"])
    federation = make(tmp_path, "dp-fts-de", rounds=ROUNDS, keys=public, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation, keys) as deployment:
        register(deployment, keys)
        site = federation.site_file("north")
        deployment.start_supernode("stranger", site, key=stranger.site_key("stranger"))
        deployment.start_supernode("keyless", site)
        plain = ["flower-supernode", "--insecure", "--superlink", deployment.address, "--host", LOOPBACK]
        deployment.start("plaintext", [*plain, "--port", str(free_port()), "--node-config", f'site="{site}"'])
        start_sites(deployment, federation, keys)
        deployment.play(federation.home, timeout=900)
        logs = {name: deployment.log(name).read_text() for name in ("stranger", "keyless", "plaintext", "north")}
    assert "SuperNode ID:" in logs.pop("north")
    for name, log in logs.items():
        assert "SuperNode ID:" not in log, name
        assert "Receiving:" not in log, name
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert [row["asked"] for row in rows] == [3] * (ROUNDS + 1)
    assert not any(row["refused"] for row in rows)
    expected = pb.run(
        problem(),
        pb.DPFTSDE(n_features=12),
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        rounds=ROUNDS,
        seed=3,
    )
    for ours, theirs in zip(releases(federation), expected.releases, strict=True):
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-9)
    queries = [q for site in sites(federation) for q in queried(site["units"], site["values"])]
    for ours, theirs in zip(queries, queried(expected.clients.units, expected.clients.values), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """A site does not talk to a server that its authority did not sign."""
    keys, public = keyed(tmp_path)
    other = make_keys(tmp_path / "other", sites=["other"])
    federation = make(tmp_path, keys=public)
    with deployed(federation, keys) as deployment:
        register(deployment, keys)
        trust = ["--root-certificates", str(other.authority), "--superlink", deployment.address]
        own = ["--auth-supernode-private-key", str(keys.site_key("north")), "--host", LOOPBACK]
        rest = ["--port", str(free_port()), "--max-retries", "2", "--node-config", 'site="x"']
        deployment.start("deceived", ["flower-supernode", *trust, *own, *rest])
        log = deployment.log("deceived")
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text().upper().replace(" ", "_"), "it refuses")
        assert "SuperNode ID:" not in log.read_text()
