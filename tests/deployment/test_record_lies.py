"""The general lies of a hostile server, told to sites that hide records by noise of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accountant.ledger import Ledger
from privbo.algorithms.thompson.releases import front
from privbo.flower.party import approved_run, ledger_path, read_site
from privbo.flower.registry import public_spec
from privbo.protocol.errors import RefusedError
from privbo.protocol.messages import Broadcast, FloatArray, Setting
from privbo.runs.manifest import derive_seed
from privbo.runs.opening import plan_run
from tests.deployment import lies
from tests.deployment.federations import ALGORITHMS, Federation, make
from tests.deployment.grid import Node
from tests.deployment.test_lies import HARMLESS, first, forging, lying_home
from tests.deployment.test_own_noise import (
    COUNTS,
    N_POINTS,
    SITES,
    SPACE,
    federation_of,
    hospitals,
    scores,
    sent,
    spent,
)

PROBLEM = {"n_clients": 3, "n_records": list(COUNTS), "space": SPACE, "name": "hospitals"}
LIES: dict[str, Any] = {f"privacy.{name}": value for name, value in lies.PRIVACY.items()} | lies.RUN
LIES |= {"privacy.protects": "validation records"}
LIES |= {"algorithm.front": 64, "algorithm.release_when": "useful", "algorithm.is_shared": False}
LIES |= {"algorithm.type": "parallel"}
LIES |= {
    "problem": PROBLEM | {"score_range": [0.0, 1e-6]},
    "problem of fewer records": PROBLEM | {"n_records": [12, 30, 8]},
    "problem with a training": PROBLEM | {"training": {"type": "gaussian", "noise_multiplier": 0.5}},
}
LIES = {key: lie for key, lie in LIES.items() if key not in lies.OWN}


def lie(federation: Federation, key: str) -> Path:
    return lying_home(federation, key.partition(" ")[0], LIES[key])


def answered(federation: Federation, grid: lies.LyingGrid) -> dict[str, FloatArray]:
    """What left each site, held to its noise and to its ledger: those of the approved run, whatever was played."""
    vectors, plan = sent(grid.replies), plan_run(public_spec(federation.home))
    (mechanism,) = plan.mechanisms
    if vectors:
        missed = (
            np.array([vectors[site] - exact(list(grid.nodes.values()), site) for site in vectors])
            / mechanism.noise_stddev()
        )
        # Three normal numbers at a site or more: all below .01 with probability 5e-7, and any above 7 below 1e-10.
        assert 0.01 < np.abs(missed).max() < 7.0
    for site in SITES:
        path = ledger_path(read_site(federation.site_file(site)))
        if site in vectors or path.exists():
            with Ledger.open(path) as ledger:
                assert ledger.verify().ok
                assert spent(ledger) == pytest.approx(2.0 if ledger.book().paid else 0.0, rel=2e-3)
                assert site not in vectors or ledger.book().paid == [plan.event]
    return vectors


def exact(nodes: list[Node], site: str) -> FloatArray:
    """The sums that a site does not send, at the points of the public seed that it was shown."""
    shown = next(message for message in nodes[0].asked if "question" in message.content.config_records)
    seed = lies.decode(lies.Question, shown.content)[0].public_seed
    number = list(SITES).index(site)
    public = Setting(space=hospitals().search_space, n_clients=len(COUNTS), rounds=1, public_seed=seed)
    points = front(public, np.array([number]), N_POINTS)[0, :, 0]
    return np.array([np.sum(scores(number, {"dose": x}) - 0.5) for x in points.tolist()])


def test_an_honest_server_of_the_same_federation_is_answered(tmp_path: Path) -> None:
    """The control: what is refused below is refused for the lie."""
    federation = federation_of(tmp_path)
    assert set(answered(federation, lies.play(federation, federation.nodes(), bend=forging(federation)))) == set(SITES)
    assert not any(lies.refusals(federation, site) for site in SITES)


@pytest.mark.parametrize("key", first(list(LIES)))
def test_sites_refuse_a_ledger_of_another_run(key: str, tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    grid = lies.play(federation, federation.nodes(), lie(federation, key))
    assert not answered(federation, grid)
    assert not lies.sent_vectors(federation)
    assert {reply["error"] for reply in grid.answers} <= {"RefusedError", "ConfigurationError", "PolicyError"}


@pytest.mark.parametrize("key", first(list(LIES)))
def test_behind_a_forged_ledger_what_leaves_has_the_approved_noise_and_price(key: str, tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    answered(federation, lies.play(federation, federation.nodes(), lie(federation, key), forging(federation)))


@pytest.mark.parametrize("case", [*sorted(HARMLESS), "Question.run"])
def test_a_bent_question_is_refused_or_answered_as_approved(case: str, tmp_path: Path) -> None:
    federation = federation_of(tmp_path)

    def bend(message: Any) -> None:
        lies.bend_question(message, lies.Question, *lies.TO_SITES[case])

    grid = lies.play(federation, federation.nodes(), bend=bend)
    assert grid.answers
    assert bool(answered(federation, grid)) == (case in HARMLESS)


@pytest.mark.parametrize("algorithm", ["multi-task", *ALGORITHMS])
@pytest.mark.parametrize("released", [True, False])
def test_no_algorithm_is_asked_a_round_before_the_first(algorithm: str, released: bool, tmp_path: Path) -> None:
    """Round -1 would be a list's last request."""
    federation = make(tmp_path, ALGORITHMS[algorithm]) if algorithm in ALGORITHMS else federation_of(tmp_path)
    federation.approve()
    run, seed = approved_run(federation.home, read_site(federation.site_file("north"))), 5
    if run.spec.seed is not None:
        seed = derive_seed(run.spec.seed, "public")
    with pytest.raises(RefusedError, match="round: found -1"):
        run.request(Broadcast(round=-1), public_seed=seed, released=released)
