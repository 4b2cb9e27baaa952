"""A site's own policy and ledger: what a hostile server asks for leaves nothing, and all runs are added up."""

import contextlib
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import privbo as pb
from accountant import Adjacency, numerical, repeat
from accountant.ledger import Ledger
from privbo.flower.party import POPULATION, admit, approved_run, judged, ledger_path, read_site
from privbo.flower.site import SiteRecord
from privbo.protocol.files import read_lines
from tests.cli.test_cli import ran
from tests.deployment.federations import Federation, change, ledger_of, make, unasked
from tests.deployment.test_site import ASKED, counting_problem
from tests.runs.test_kills import forked

FACTORY = "tests.deployment.test_site:counting_problem"
ALWAYS = pb.FedPNE(horizon=400, c=0.02, release_when="always")  # what ``make`` plays
BOUND = {"epsilon": 4.0, "delta": 1e-6}
HONEST = {"epsilon": 2.0, "delta": 1e-6}
SITE = "south"


def federation_of(root, *, policy=BOUND, **changes: object) -> Federation:
    settings = {"factory": FACTORY, "rounds": 2, "seed": None, "privacy": HONEST} | changes
    return make(root, policy=policy if policy is None else dict(policy), **settings)


def asks(federation: Federation, **changes: object) -> None:
    """Let the server ship other files, under a directory of its own that knows no earlier run."""
    change(federation.home / "run.toml", **changes)
    federation.approve()
    if federation.run.path.exists():
        shutil.rmtree(federation.run.path)


def played(federation: Federation) -> list[dict]:
    """Everything that left the sites in a run of a server that does not ask beforehand, as records of their replies."""
    ASKED.clear()
    with unasked():
        return federation.play().answers


def kept(federation: Federation, site: str = SITE):
    return federation.root / site / "kept"


def files_sent(federation: Federation, site: str = SITE):
    return set(kept(federation, site).glob("*/sent/*"))


def last_words(federation: Federation, site: str = SITE) -> str:
    """The error that stands last in the log of the run that was asked for last."""
    log = max(kept(federation, site).rglob("errors.log"), key=lambda path: path.stat().st_mtime_ns)
    return log.read_text().strip().splitlines()[-1]


# What else a policy refuses, in process and at a site alike: tests/plans/test_policy.py.
HOSTILE = {
    "none = true": ({"none": True}, "privacy.none=true, and policy.no_privacy=false"),
    "epsilon 1000": ({"epsilon": 1000.0, "delta": 1e-6}, "from epsilon 2 to 1001 at delta 1e-06, and policy.epsilon=4"),
    "a delta of almost 1": ({"epsilon": 2.0, "delta": 1.0 - 1e-15}, "at delta 1e-06, and policy.epsilon=4"),
}


@pytest.mark.filterwarnings("ignore:delta = 1 is above 1/N")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_run_leaves_nothing_but_the_class_of_the_error(case: str, tmp_path) -> None:
    hostile, words = HOSTILE[case]
    federation = federation_of(tmp_path)
    assert any("vectors" in reply for reply in played(federation))
    assert ASKED
    with ledger_of(federation, SITE) as ledger:
        before = ledger.head
    sent_before = files_sent(federation)
    asks(federation, privacy=hostile)
    replies = played(federation)
    assert not ASKED
    assert replies
    for reply in replies:
        assert reply.keys() - {"sequence", "head"} == {"site", "nonce", "error"}
        assert reply["error"] == "PolicyError"
    assert files_sent(federation) == sent_before
    with ledger_of(federation, SITE) as ledger:
        assert ledger.head == before
    for site in federation.sites:
        assert last_words(federation, site).startswith("privbo.protocol.errors.PolicyError: this site refuses: ")
        assert words in last_words(federation, site)
    assert all(row["answered"] == [] for row in read_lines(federation.run.private / "transport.jsonl"))


def test_the_run_that_passes_the_bound_over_all_runs_leaves_nothing(tmp_path) -> None:
    federation = federation_of(tmp_path, privacy={"epsilon": 1.0, "delta": 1e-6})
    privacy = pb.Privacy(epsilon=1.0, delta=1e-6)
    each = pb.plan(counting_problem(), ALWAYS, privacy=privacy, rounds=2).event
    costs = [numerical.epsilon(repeat(each, n), 1e-6, adjacency=Adjacency.ZERO_OUT) for n in range(1, 20)]
    allowed = sum(cost <= 4.0 for cost in costs)
    for _ in range(allowed):
        asks(federation)
        assert any("vectors" in reply for reply in played(federation))
    with ledger_of(federation, SITE) as ledger:
        left = ledger.left()
        assert len(ledger.book().reservations) == allowed
        assert not ledger.entries()  # plans are paid whole, and once
    assert left.spent == pytest.approx(costs[allowed - 1], rel=1e-9)
    asks(federation)
    assert {reply["error"] for reply in played(federation)} == {"PolicyError"}
    assert not ASKED
    assert f"to {costs[allowed]:.2f}"[:6] in last_words(federation)
    asks(federation, privacy={"epsilon": 0.05, "delta": 1e-6})  # what is left is still there for a small one
    assert any("vectors" in reply for reply in played(federation))


def test_rewards_of_a_run_are_charged_as_they_were_judged(tmp_path) -> None:
    """Planted fault: the most expensive release was judged, and all of them were charged, over the bound."""
    rewards = {"unit": "reward"}
    federation = federation_of(tmp_path, policy=BOUND | rewards | {"epsilon": 2.1}, privacy=HONEST | rewards)
    federation.approve()
    said = judged(approved_run(federation.home, read_site(federation.site_file(SITE))))
    assert len([reply for reply in played(federation) if "vectors" in reply]) > len(federation.sites)
    with ledger_of(federation, SITE) as ledger:
        assert ledger.left().spent == said.projected <= 2.1


def test_a_hospital_joins_and_the_same_ledger_goes_on(tmp_path) -> None:
    twelve = {"sites": {"north": "0-3", "south": "4-7", "west": "8-11"}, "n_clients": 12}
    joined = {"sites": {"east": "0", "north": "1-4", "south": "5-8", "west": "9-12"}, "n_clients": 13}
    for changes in (twelve, joined | {"privacy": {"epsilon": 1.0, "delta": 1e-6}}):
        n_clients = changes["n_clients"]
        federation = federation_of(tmp_path / str(n_clients), arguments={"n_clients": n_clients}, **changes)
        for name in federation.sites:
            change(federation.site_file(name), directory=str(tmp_path / "disks" / name))
        assert any("vectors" in reply for reply in played(federation))
    first = pb.plan(counting_problem(12), ALWAYS, privacy=pb.Privacy(epsilon=2.0, delta=1e-6), rounds=2).event
    alone = numerical.epsilon(repeat(first, 1), 1e-6, adjacency=Adjacency.ZERO_OUT)
    with ledger_of(federation, SITE) as old, ledger_of(federation, "east") as new:
        assert [r.run for r in old.book().reservations] != [r.run for r in new.book().reservations]
        assert len(old.book().reservations) == 2
        assert len(new.book().reservations) == 1
        assert old.left().spent > alone > new.left().spent
        assert old.verify().ok


def test_a_run_that_changes_its_files_under_the_same_name_is_not_answered(tmp_path) -> None:
    federation = federation_of(tmp_path)
    nodes = federation.nodes()
    federation.play(nodes)
    asked, sent_before = nodes[1].asked[-1], files_sent(federation)
    for path in sent_before:
        path.unlink()  # so that it would have to act again
    path = federation.home / "run.toml"
    path.write_text(path.read_text().replace("epsilon = 2.0", "epsilon = 1.9"))
    federation.approve()  # as files of another run
    ASKED.clear()
    reply = nodes[1].handle(asked)
    assert reply.content.config_records["answer"]["error"] == "RunError"
    assert not ASKED
    assert "was charged with other settings than it has now" in last_words(federation)


def test_a_ledger_that_is_gone_or_was_put_back_answers_nobody(tmp_path) -> None:
    federation = federation_of(tmp_path)
    played(federation)
    path = ledger_path(read_site(federation.site_file(SITE)))
    shutil.rmtree(path.parent)
    asks(federation, privacy={"epsilon": 0.5, "delta": 1e-6})
    played(federation)
    assert "is gone though this site has answered; restore it from a copy" in last_words(federation)
    empty = read_site(federation.site_file(SITE))
    Ledger.create(path, empty.policy.ledger_policy(POPULATION)).close()
    (run,) = [folder for folder in kept(federation).iterdir() if any(folder.glob("sent/*"))]
    with pytest.raises(pb.RunError, match=r"does not know run .*, which this site has answered"):
        admit(approved_run(federation.home, empty), run.name, answered={0})


@pytest.mark.parametrize("bound", [{"epsilon": 5.0}, {"delta": 1e-5}, {"rule": "renyi"}, {"unit": "reward"}], ids=repr)
def test_a_bound_is_never_raised_on_the_ledger_that_it_was_made_for(bound: dict, tmp_path) -> None:
    federation = federation_of(tmp_path)
    played(federation)
    file = federation.site_file(SITE)
    change(file, policy=BOUND | bound)
    asks(federation, privacy={"epsilon": 0.5, "delta": 1e-6} | ({"unit": "reward"} if "unit" in bound else {}))
    before = files_sent(federation)
    played(federation)
    assert files_sent(federation) == before
    assert "the ledger of this site's runs was made with epsilon = 4, delta = 1e-06" in last_words(federation)
    change(file, policy=BOUND | {"epsilon": 1.0})  # stricter may stand
    asks(federation, privacy={"epsilon": 0.5, "delta": 1e-6})
    played(federation)
    assert "policy.epsilon=1" in last_words(federation)


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["before the reservation", "before the answer"])
def test_a_site_that_is_killed_never_counts_too_little(where: str, tmp_path) -> None:
    federation = federation_of(tmp_path)
    reserve = Ledger.reserve

    def play() -> None:
        if where == "before the answer":
            SiteRecord.answer = die
        else:
            Ledger.reserve = lambda own, plan: (die if "_policy" in own.path.parts else reserve)(own, plan)
        federation.play([federation.nodes()[1]])

    process = forked(play)
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert not files_sent(federation)
    with ledger_of(federation, SITE) as ledger:
        paid = len(ledger.book().reservations)
    assert paid == (where == "before the answer")
    assert any("vectors" in reply for reply in played(federation))  # the server goes on, and the site answers
    with ledger_of(federation, SITE) as ledger:
        assert len(ledger.book().reservations) == 1
        assert ledger.left().spent == pytest.approx(2.0, rel=2e-3)
        assert ledger.verify().ok


def test_two_runs_never_share_the_same_remainder(tmp_path) -> None:
    """Each fits alone; asked at the same time, one is refused."""
    federation = federation_of(tmp_path, privacy={"epsilon": 3.0, "delta": 1e-6})
    federation.approve()
    own = approved_run(federation.home, read_site(federation.site_file(SITE)))

    def ask(number: int) -> bool:
        with contextlib.suppress(pb.PolicyError):
            admit(own, f"run-{number}", answered=set())
            return True
        return False

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(ask, range(4))) == 1


def test_check_prints_the_sites_verdict_and_ledger_left_reads_its_ledger(tmp_path) -> None:
    federation = federation_of(tmp_path)
    site = federation.site_file(SITE)

    def checked(ends: int) -> str:
        return ran("check", federation.home / "run.toml", "--site", site, ends=ends).stdout

    verdict = checked(0)
    assert "this site would answer: epsilon 2 of 4 would be charged, 2" in verdict
    assert "left at delta 1e-06" in verdict
    assert not ledger_path(read_site(site)).exists()  # it was only asked
    bound = "the bound that this ledger keeps for all of its runs is epsilon 4 at delta 1e-06"
    assert ran("ledger", "left", site).stdout.startswith(f"{bound}; 0 of it")
    played(federation)
    for place in (site, kept(federation), ledger_path(read_site(site))):
        left = ran("ledger", "left", place, "--noise-multiplier", "10").stdout
        assert f"{bound}; 2 of it has been charged so far, 2" in left
        assert "more fit" in left
    asks(federation, privacy={"none": True})
    assert "this site refuses: privacy.none=true, and policy.no_privacy=false" in checked(3)
    change(site, policy=None)
    assert "this site refuses every question: site.toml has no [policy]" in checked(3)
    ran("ledger", "left", federation.home, ends=2)
