"""Receipts of sites: what was seen is kept and countersigned, and a ledger that went back gets no answer."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest

import privbo as pb
from accountant.errors import LedgerError, PrivacyError
from accountant.ledger.chain import Row, encode_rows, row_digest
from accountant.ledger.signing import checked
from privbo.cli.ledger import verify
from privbo.flower.site import PURPOSE, SiteRecord, countersigned
from privbo.protocol.files import read_lines
from privbo.protocol.messages import Standing
from privbo.reports.bundle import write_receipt
from privbo.runs.recovery import recover
from tests.builders import put_back, same_releases
from tests.deployment.federations import SITES, Federation, make, releases
from tests.deployment.grid import Node, unavailable
from tests.deployment.test_site import LEDGER, PLAN, VECTORS, Echo, question


def test_every_round_leaves_a_countersigned_receipt_with_the_operator_and_the_site(tmp_path) -> None:
    federation = make(tmp_path)
    federation.play()
    kept = read_lines(federation.run.countersigned_path)
    with pb.load(federation.run.path).ledger as ledger:
        heads = [row.digest for row in ledger.book().rows]
        plan = ledger.book().reservations[0].digest
    assert {row["site"] for row in kept} == set(SITES)
    run = pb.load(federation.run.path).run_id
    for row in kept:
        assert heads[row["sequence"] - 1] == row["head"]
        assert row["plan"] == plan
        seen = {name: row[name] for name in ("round", "sequence", "head", "plan")}
        statement = {"content": {"run": run} | seen, "key": row["key"], "signature": row["signature"]}
        assert checked(statement, PURPOSE)["round"] == row["round"]
        site = read_lines(next((tmp_path / row["site"] / "kept").glob("*/receipts.jsonl")))
        assert seen in site
    keys = {(row["site"], row["key"]) for row in kept}
    assert len(keys) == len({key for _, key in keys}) == len(SITES)
    public = sum("head" in row for row in read_lines(federation.run.history_path))
    assert verify(federation.run.path).receipts == public  # how many sites were there is nobody's business
    path = federation.run.countersigned_path
    path.write_text(path.read_text().replace(kept[-1]["head"], "0" * 64))
    assert "countersigned.jsonl" in str(verify(federation.run.path).problem)


def forked_rows(kept: list[Row], again: list[Row]) -> list[Row]:
    """A ledger that went back and was charged once more: the same names, other digests."""
    rows = list(kept)
    for row in again:
        body = row.body + b" "
        before = rows[-1].digest
        digest = row_digest(before, row.sequence, row.release_id, body)
        rows.append(dataclasses.replace(row, body=body, previous=before, digest=digest))
    return rows


def shown(rows: list[Row]):
    """A question with these rows behind it, ending where they do."""
    last = rows[-1]
    standing = Standing(plan=PLAN.digest, sequence=last.sequence, head=last.digest)
    return {"chain": encode_rows(rows), "standing": standing}


def test_a_site_refuses_a_ledger_that_does_not_extend_what_it_saw(tmp_path) -> None:
    record, asked = SiteRecord.open(tmp_path, "run"), question(3, {})
    with pytest.raises(pb.RunError, match="binds no plan"):  # nor one that does not begin with the plan
        record.answer(dataclasses.replace(asked, chain=encode_rows(LEDGER.book().rows[4:5])), VECTORS, Echo())
    record.answer(asked, VECTORS, Echo())
    rows, later = LEDGER.book().rows, question(4, {})
    short = rows[:4]
    back = dataclasses.replace(later.standing, sequence=short[-1].sequence, head=short[-1].digest)
    other_plan = dataclasses.replace(later.standing, plan="0" * 64)
    broken = later.chain.replace(b'\\"noise_multiplier\\":4.0', b'\\"noise_multiplier\\":9.0')
    assert broken != later.chain
    for changes, words in (
        ({"chain": encode_rows(short), "standing": back, "released": False}, "does not extend row 5"),
        ({"chain": encode_rows([*rows[:2], *rows[3:6]])}, "does not follow"),
        ({"chain": encode_rows(forked_rows(rows[:4], rows[4:6]))}, "do not end at the ledger's head"),
        (shown(forked_rows(rows[:4], rows[4:6])[-1:]), "does not go on from what was seen"),
        (shown(forked_rows(rows[:4], rows[4:6])), "does not extend row 5"),
        ({"chain": encode_rows(rows[5:6]), "standing": other_plan}, "binds no plan"),
        ({"chain": b""}, "do not end at the ledger's head"),
        ({"chain": broken}, "does not match its digest"),
        ({"chain": encode_rows(rows[:8])}, "do not end at the ledger's head"),
        ({"chain": b"rubbish"}, "no rows of a ledger"),
        ({"run": "other"}, "round 4 was not charged"),
        ({"broadcast": dataclasses.replace(later.broadcast, round=8)}, "round 8 was not charged"),
    ):
        with pytest.raises((pb.RunError, LedgerError), match=words):
            record.answer(dataclasses.replace(later, **changes), VECTORS, Echo())
    assert len(read_lines(record.receipts)) == 1
    since = dataclasses.replace(later, chain=encode_rows(rows[5:6]))
    record.answer(since, VECTORS, Echo())  # the true ledger is answered after all, shown from row 6 on


def carried(federation: Federation, nodes: list[Node]) -> list[list[int]]:
    """Play, and note how many bytes of the ledger every question carries."""
    federation.play(nodes)
    asked = [[message.content.config_records["question"]["chain"] for message in node.asked] for node in nodes]
    return [list(map(len, chains)) for chains in zip(*asked, strict=True)]


def test_a_question_carries_what_its_site_lacks_however_long_the_run_is(tmp_path) -> None:
    federation = make(tmp_path, "dp-fts-de", rounds=5, privacy={"noise_multiplier": 4.0})
    nodes = federation.nodes()
    # A site whose reply is lost is shown two rows the next time.
    nodes[1].tamper = lambda reply, round_: unavailable(reply) if round_ == 2 else reply
    first, *rest = carried(federation, nodes)
    later = np.array(rest[:4])
    assert len(set(first)) == 1  # the plan and the first charge, to everybody
    assert later.max() < 2.2 * later.min()
    assert [list(sizes) for sizes in later > 1.5 * later.min()] == [[False, i == 2, False] for i in range(4)]
    assert verify(federation.run.path).verified


def test_a_site_that_lost_its_disk_is_shown_everything_once_it_has_said_so(tmp_path) -> None:
    federation = make(tmp_path, "dp-fts-de", rounds=4, privacy={"noise_multiplier": 4.0})
    nodes = federation.nodes()

    def burnt(reply, round_: int):
        if round_ == 1:
            shutil.rmtree(tmp_path / "north" / "kept")
        return reply

    nodes[0].tamper = burnt
    sizes = carried(federation, nodes)
    refused = [row["refused"] for row in read_lines(federation.run.private / "transport.jsonl")]
    assert refused[:4] == [{}, {}, {"raised RunError": 1}, {}]
    assert sizes[3][0] > 1.5 * sizes[3][1]


def test_a_countersignature_is_for_one_head_and_nothing_else_is_one(tmp_path) -> None:
    first, second = question(3, {}), question(4, {})
    _, receipt = SiteRecord.open(tmp_path, "run").answer(first, VECTORS, Echo())
    assert countersigned(receipt, "run", 3, first.standing) is not None
    assert countersigned(receipt, "run", 4, second.standing) is None
    assert countersigned(receipt, "other", 3, first.standing) is None
    altered = json.dumps(json.loads(receipt) | {"signature": "00" * 64}).encode()
    for other in (altered, b"rubbish", None, b"[" * 3000):
        assert countersigned(other, "run", 3, first.standing) is None


PARTS = {
    "ledger": ("server/run/ledger.sqlite", "server/run/ledger.sqlite-wal"),
    "commits": ("server/run/ledger.sqlite.commits",),
    "history": ("server/run/history.jsonl",),
    "countersigned": ("server/run/private/countersigned.jsonl",),
    "sites": tuple(f"{site}/kept" for site in SITES),
}
SERVERS = ("commits", "history", "countersigned")


def restore(old, root, parts: tuple[str, ...]) -> None:
    """Restore parts of a federation from a backup."""
    put_back(old, root, [name for part in parts for name in PARTS[part]])


def backed_up(federation: Federation, at: int, root, old) -> list[Node]:
    """Nodes of a federation of which one copies a folder in which others go on writing, when it replies in a round."""
    nodes = federation.nodes()

    def backup(reply, round_: int):
        while round_ == at and not old.exists():
            try:
                shutil.copytree(root, old, ignore=shutil.ignore_patterns("*.new"))
            except shutil.Error:  # a file went while it was copied
                shutil.rmtree(old)
        return reply

    nodes[-1].tamper = backup
    return nodes


# Each part alone, all that is the server's, and everything, in every run of the suite; all of them in ``make slow``.
ALWAYS = [*((part,) for part in PARTS), *(("ledger", part) for part in PARTS if part != "ledger")]
ALWAYS += [SERVERS, ("ledger", *SERVERS), (*SERVERS, "sites"), tuple(PARTS)]
COMBINATIONS = [
    pytest.param(parts, id="+".join(parts), marks=() if parts in ALWAYS else pytest.mark.slow)
    for count in range(1, len(PARTS) + 1)
    for parts in itertools.combinations(PARTS, count)
]
assert len(COMBINATIONS) == 31


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A finished federation, a backup of it from its middle, and a receipt of its end."""
    folder = tmp_path_factory.mktemp("finished")
    federation = make(folder / "all", privacy={"noise_multiplier": 4.0})
    federation.play(backed_up(federation, 2, folder / "all", folder / "old"))
    receipt = write_receipt(federation.run.path, folder / "receipt.json").path
    return folder / "all", folder / "old", receipt


@pytest.mark.parametrize("parts", [one for one in COMBINATIONS if "ledger" not in one.values[0]])
def test_what_lags_behind_a_federations_ledger_loses_nothing_and_draws_nothing_again(parts, finished, tmp_path) -> None:
    whole, old, receipt = finished
    federation = Federation(root=shutil.copytree(whole, tmp_path / "all"))
    made = releases(federation)
    restore(old, federation.root, parts)
    federation.play()
    same_releases(releases(federation), made)
    assert [release.head for release in releases(federation)] == [release.head for release in made]
    assert verify(federation.run.path, [receipt]).verified


@pytest.mark.parametrize("parts", [one for one in COMBINATIONS if "ledger" in one.values[0]])
def test_a_federations_ledger_restored_with_any_parts_is_refused_or_betrayed_by_one_receipt(parts, finished, tmp_path):
    whole, old, receipt = finished
    root = shutil.copytree(whole, tmp_path / "all")
    federation = Federation(root=root)
    home = federation.run
    sent = {path: path.read_bytes() for path in root.glob("*/kept/*/sent/*.npz")}
    restore(old, root, parts)
    if not set(SERVERS) <= set(parts):
        with pytest.raises(PrivacyError, match=r"was committed and is gone|has seen row|holds no release of it"):
            federation.play()
    elif "sites" not in parts:  # the server can't know; its sites do, and nothing of theirs is drawn again
        federation.play()
        refused = [row["refused"] for row in read_lines(home.private / "transport.jsonl")]
        assert refused[-1] == {"raised RunError": len(SITES)}
        assert {path: path.read_bytes() for path in sent} == sent
    assert not verify(home.path, [receipt]).verified


def test_after_a_recovery_sites_answer_again(tmp_path) -> None:
    federation = make(tmp_path / "all", privacy={"noise_multiplier": 4.0})
    federation.play(backed_up(federation, 1, tmp_path / "all", tmp_path / "old"))
    restore(tmp_path / "old", tmp_path / "all", ("ledger", "commits"))
    assert recover(federation.run).releases >= 1
    federation.play()
    assert verify(federation.run.path).verified
    assert "once more" in verify(federation.run.path).text
    with pb.load(federation.run.path).ledger as ledger:
        assert all(ledger.stored_release(entry.release_id) is not None for entry in ledger.entries())
