"""``privbo best``: parameters that clients use, read where the clients are."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.protocol.messages import Algorithm
from tests.cli.test_cli import privbo
from tests.conformance.cases import problem
from tests.deployment.federations import make
from tests.runs.test_run import SIMULATED

MIXED = {
    "rate": pb.Real(1e-3, 1.0, log=True),
    "depth": pb.Int(1, 6),
    'ker"nel é': pb.Categorical(["rbf", 'lin"ear\\', "poly\x7f"]),
    "shrink": pb.Categorical([True, False]),
}


def score(client: int, params: dict) -> float:
    if client == 2:
        raise ValueError("clinic 2 is closed")
    return min(1.0, 0.1 * params["depth"] + 0.3 * params["shrink"] - abs(np.log10(params["rate"]) + 1) / 10)


def mixed_run(home: Path, algorithm: Algorithm) -> pb.Record:
    mixed = pb.Problem(space=MIXED, objective=score, n_clients=5, name="mixed")
    return pb.run(mixed, algorithm, privacy=SIMULATED, rounds=3, seed=2, directory=home)


ALGORITHMS = {
    "shared prior": pb.SharedPrior(n_features=8, release_when="always"),
    "elimination": pb.PFPNE(horizon=40, c=0.02),
    "own algorithm": Zoom(n_candidates=4),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_client_gets_its_own_parameters_in_every_form(name: str, tmp_path: Path) -> None:
    home = tmp_path / "run"
    made = mixed_run(home, ALGORITHMS[name])
    assert [best.client for best in made.best()] == [0, 1, 3, 4]
    for best in made.best():
        assert best == made.best(best.client)
        assert score(best.client, best.params) == pytest.approx(best.value, abs=1e-9)
    told = tomllib.loads(privbo("best", str(home), "--toml").stdout)
    assert told == {"clients": {str(best.client): best.params for best in made.best()}}
    assert tomllib.loads(privbo("best", str(home), "--toml", "--client", "3").stdout) == made.best(3).params
    table = privbo("best", str(home)).stdout
    assert "without a finite value: 2" in table
    assert "--show-private" in table
    shown = json.loads(privbo("best", str(home), "--json", "--show-private", "--client", "3").stdout)
    assert shown["clients"] == [{"client": 3, "params": made.best(3).params, "value": made.best(3).value}]
    hidden = privbo("best", str(home), "--json").stdout
    assert json.loads(hidden)["without"] == [2]
    assert '"value"' not in hidden


def test_what_cannot_be_answered_is_refused_in_one_line(tmp_path: Path) -> None:
    mixed_run(tmp_path / "run", ALGORITHMS["shared prior"])
    for arguments, words in (
        ((str(tmp_path / "run"), "--client", "2"), "client 2 has no point here"),
        ((str(tmp_path / "run"), "--toml", "--json"), "give one of them"),
        ((str(tmp_path),), "neither a run's directory nor a site's"),
    ):
        refused = privbo("best", *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert refused.stderr.count("\n") == 1
    facts = tmp_path / "site0" / "kept" / "run" / "facts.json"  # as of a site: its settings' folder, then its own
    facts.parent.mkdir(parents=True)
    facts.write_text("{}")
    named = privbo("best", str(tmp_path / "site0")).stderr
    assert f"name one, such as {facts.parents[1]}. A site's is the directory in its site.toml" in named
    assert f"name one, such as {tmp_path / 'run'}. " in privbo("best", str(tmp_path)).stderr
    (tmp_path / "run" / "private" / "evaluations.npz").unlink()
    assert "go on with it first" in privbo("best", str(tmp_path / "run")).stderr


def test_after_a_federation_each_site_reads_its_own_and_the_server_none(tmp_path: Path) -> None:
    federation = make(tmp_path, {"type": "shared-prior", "n_features": 8, "release_when": "always"})
    federation.play()
    alike = pb.run(
        problem(),
        pb.SharedPrior(n_features=8, release_when="always"),
        privacy=pb.Privacy(noise_multiplier=1.0, noise="simulation"),
        rounds=4,
        seed=3,
    )
    seen = {}
    for site in federation.sites:
        found = json.loads(privbo("best", str(federation.site_file(site).parent / "kept"), "--json").stdout)
        seen |= {row["client"]: row["params"] for row in found["clients"]}
        assert all("value" in row for row in found["clients"])
    assert sorted(seen) == list(range(7))
    assert seen == {best.client: pytest.approx(best.params) for best in alike.best()}
    at_server = privbo("best", str(federation.run.path))
    assert at_server.returncode == 2
    assert "never came here" in at_server.stderr
    assert not list(federation.run.path.rglob("facts.json"))
