"""What leaves for people outside: receipts that betray a lost tail, and a bundle that is checked without torch."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import privbo as pb
from accountant import numerical
from accountant.errors import DisagreementError, LedgerError
from accountant.events import BestOfRandomRuns, compose, repeat
from accountant.ledger import Ledger
from accountant.ledger.signing import checked, kept_secret, sign, signing_key
from accountant.verify import auditor
from accountant.verify.events import Adjacency
from accountant.verify.recomputation import recomputed
from accountant.wording import upper_text
from privbo.audits.clipping import publish_norms
from privbo.cli.ledger import verify
from privbo.cli.run import report_run
from privbo.door.door import Door
from privbo.reports.bundle import write_bundle, write_receipt
from privbo.reports.report_page import Told
from tests.accountant.builders import fixed, gaussian, poisson
from tests.builders import stopped
from tests.cli.test_cli import ran, refused
from tests.reports.auditors import alone, as_read
from tests.reports.runs import small_run
from tests.reports.test_forgers import signed
from tests.runs.test_evidence import PARTS, copy, play


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("bundle") / "run"
    small_run(home, privacy=pb.Privacy(epsilon=2.0)).ledger.close()
    return home


def test_a_bundle_is_checked_without_torch_and_says_what_was_promised_to_whom(made: Path, tmp_path) -> None:
    written = write_bundle(made, tmp_path / "bundle.json")
    done = alone(written.path)
    assert done.returncode == 0, done.stderr
    record = pb.load(made)
    assert f"Epsilon quoted: {upper_text(record.epsilon(), 6)} at delta 1e-05, for the whole run" in done.stdout
    found = recomputed(as_read(record.event), 1e-5, Adjacency.ZERO_OUT)
    assert f"Computed here:  {upper_text(found.upper, 6)}, exact" in done.stdout
    assert "each client of population" in done.stdout
    assert written.key in done.stdout
    assert "on another ledger too: this file shows one" in done.stdout
    assert "that is the operator's word" in done.stdout
    assert len(done.stdout.splitlines()) < 40


def test_a_bundle_that_was_touched_is_not_as_it_was_signed(made: Path, tmp_path) -> None:
    path = write_bundle(made, tmp_path / "bundle.json").path
    path.write_text(path.read_text().replace('"run": "', '"run": "x'))
    done = alone(path)
    assert (done.returncode, "altered after signing" in done.stderr) == (3, True)
    mixed_up = alone(write_receipt(made, tmp_path / "receipt.json").path)
    assert (mixed_up.returncode, mixed_up.stdout) == (3, "")
    assert mixed_up.stderr.endswith("this is a signed receipt and no bundle; name the other file\n")
    wanted = alone(Path("--help")).stdout
    assert "--receipt" in wanted
    assert "4: NOT COUNTED" in " ".join(wanted.split())


OFTEN = poisson(0.3, 2.0)
COUNTED = [
    (gaussian(4.0, 20), Adjacency.ZERO_OUT, 1e-9),
    (gaussian(0.7, 3), Adjacency.ZERO_OUT, 1e-9),
    (poisson(0.3, 2.0, 50), Adjacency.ZERO_OUT, 0.006),
    (poisson(0.3, 2.0, 50), Adjacency.REPLACE_ONE, 0.006),
    (poisson(0.01, 1.0, 200), Adjacency.ZERO_OUT, 0.01),
    (fixed(40, 10, 2.0, 20), Adjacency.ZERO_OUT, 0.01),
    (compose([(OFTEN, 10), gaussian(5.0, 5)]), Adjacency.ZERO_OUT, 0.01),
]


@pytest.mark.parametrize(("event", "adjacency", "apart"), COUNTED)
def test_the_auditors_own_count_holds_the_tight_number_between_its_ends(event, adjacency, apart) -> None:
    found = recomputed(as_read(event), 1e-5, adjacency)
    tight = numerical.epsilon_interval(event, 1e-5, adjacency=adjacency.value)
    assert found.lower <= tight.upper * (1 + 1e-9)
    assert found.upper >= tight.lower * (1 - 1e-9)
    assert found.upper - found.lower <= apart * found.upper


def test_where_the_grid_cannot_tell_the_auditor_counts_by_renyi_and_says_so() -> None:
    found = recomputed(as_read(repeat(OFTEN, 50)), 1e-13, Adjacency.ZERO_OUT)
    assert found.how == "certified ends, the lower by a test and the upper by Rényi divergences"
    tight = numerical.epsilon_interval(repeat(OFTEN, 50), 1e-13, adjacency=Adjacency.ZERO_OUT)
    assert 0.99 * tight.lower < found.lower < tight.upper < found.upper
    best = BestOfRandomRuns(run=repeat(OFTEN, 2), eta=1.0, gamma=0.5)
    found = recomputed(as_read(repeat(best, 1)), 1e-5, Adjacency.ZERO_OUT)
    assert 0.0 < found.lower < found.upper == math.inf


def test_a_sampled_run_that_quotes_too_little_does_not_verify(tmp_path) -> None:
    """The forger may sign what it likes: the least that the bound releases cost is counted anew."""
    small_run(tmp_path / "run", privacy=pb.Privacy(epsilon=2.0, sample_rate=0.5)).ledger.close()
    content = json.loads(write_bundle(tmp_path / "run").path.read_text())["content"]
    sound = auditor.verify_bundle(signed(content, tmp_path / "same.json"))
    assert sound.verified, sound.problems
    assert "certified ends" in " ".join(sound.statement)
    content["quoted"]["epsilon"] *= 0.97
    found = auditor.verify_bundle(signed(content, tmp_path / "forged.json"))
    assert "computed here it is at least" in " ".join(found.problems)


def test_what_was_published_beside_a_run_has_to_be_quoted(tmp_path) -> None:
    home = tmp_path / "run"
    small_run(home, privacy=pb.Privacy(noise_multiplier=4.0)).ledger.close()
    before = json.loads(write_bundle(home).path.read_text())["content"]["quoted"]["epsilon"]
    with (record := pb.load(home)).ledger:
        publish_norms(record, noise_multiplier=1.0)
    written = (home / "bundle.json").read_bytes()
    with pytest.raises(pb.ConfigurationError, match=r"bundle.json says something else.*move it away, or name another"):
        write_bundle(home)  # of another total: an auditor may hold the first one
    assert (home / "bundle.json").read_bytes() == written
    content = json.loads(write_bundle(home, tmp_path / "later.json").path.read_text())["content"]
    found = auditor.verify_bundle(signed(content, tmp_path / "same.json"))
    assert found.verified, found.problems
    content["quoted"]["epsilon"] = before
    assert not auditor.verify_bundle(signed(content, tmp_path / "forged.json")).verified


def test_a_run_that_protects_nobody_says_so_in_its_bundle(tmp_path) -> None:
    for name, privacy in (("seeded", pb.Privacy(epsilon=2.0, noise="simulation")), ("none", pb.NoPrivacy())):
        small_run(tmp_path / name, privacy=privacy).ledger.close()
        found = auditor.verify_bundle(write_bundle(tmp_path / name).path)
        assert found.verified, found.problems
        assert (", A SIMULATION WITH SEEDED NOISE" in found.page.splitlines()[0]) == (name == "seeded")
        assert "protect" in " ".join(found.statement)
    assert math.isinf(recomputed(as_read(pb.load(tmp_path / "none").event), 1e-5, Adjacency.ZERO_OUT).lower)


def test_one_receipt_betrays_a_run_of_which_everything_went_back_together(tmp_path, monkeypatch):
    home, close = tmp_path / "run", Door.close

    def backup(event: pb.Round) -> None:
        if event.index == 1:
            copy(home, tmp_path / "old", tuple(PARTS))

    def closed(*given):
        copy(home, tmp_path / "open", tuple(PARTS))
        return close(*given)

    monkeypatch.setattr(Door, "close", closed)
    play(home, on_round=backup).ledger.close()
    receipt = write_receipt(home, tmp_path / "receipt.json").path
    assert write_receipt(home, receipt).path.read_bytes() == receipt.read_bytes()  # of the same state it may be again
    assert receipt.stat().st_size < 1000
    assert verify(home, [receipt]).verified
    assert auditor.verify_bundle(write_bundle(home).path, [receipt]).verified
    copy(tmp_path / "old", home, tuple(PARTS))
    assert verify(home).verified  # nothing on this disk knows better
    found = verify(home, [receipt])
    assert not found.verified
    assert "receipt.json has seen row" in str(found.problem)
    late = auditor.verify_bundle(write_bundle(home, tmp_path / "late.json").path, [receipt])
    assert "which is not in the ledger" in " ".join(late.problems)
    monkeypatch.undo()
    copy(tmp_path / "open", home, tuple(PARTS))
    play(home, resume=True).ledger.close()  # its last release was charged, and is drawn again
    again = auditor.verify_bundle(write_bundle(home, tmp_path / "again.json").path, [receipt])
    assert "it has seen stored release" in " ".join(again.problems)
    assert not verify(home, [receipt]).verified


def test_a_later_ledger_extends_an_earlier_receipt(tmp_path) -> None:
    stopped(0, play, tmp_path / "run")
    receipt = write_receipt(tmp_path / "run").path
    play(tmp_path / "run", resume=True).ledger.close()
    assert verify(tmp_path / "run", [receipt]).verified


def test_a_receipt_of_another_run_or_by_nobody_is_refused(made: Path, tmp_path) -> None:
    play(tmp_path / "other").ledger.close()
    other = write_receipt(tmp_path / "other").path
    with pytest.raises(DisagreementError, match="is a receipt of"):
        verify(made, [other])
    assert "of another run" in " ".join(auditor.verify_bundle(write_bundle(made).path, [other]).problems)
    ran("verify-bundle", made / "bundle.json", "--receipt", other, ends=3)
    path = write_receipt(made, tmp_path / "receipt.json").path
    path.write_text(path.read_text().replace('"sequence": ', '"sequence": 1'))
    with pytest.raises(DisagreementError, match="altered after signing"):
        verify(made, [path])
    contents = ([1], 3, None, [["run", "run"]], {}, {"run": 1, "sequence": "x", "head": "", "stored": None})
    forged = [sign(Ed25519PrivateKey.generate(), "receipt", content) for content in contents]
    for receipt in ({}, {"content": {}, "key": "zz", "signature": "00"}, *forged):
        path.write_text(json.dumps(receipt))
        with pytest.raises(LedgerError, match=r"is no(.*signed)? receipt"):
            verify(made, [path])


def test_a_signature_is_for_its_purpose_alone_and_its_key_stays_private(tmp_path) -> None:
    key = signing_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert signing_key(tmp_path / "key").private_bytes_raw() == key.private_bytes_raw()
    made = sign(key, "receipt", {"a": 1})
    assert checked(made, "receipt") == {"a": 1}
    with pytest.raises(LedgerError, match="this is a signed receipt and no bundle"):
        checked(made, "bundle")
    with pytest.raises(DisagreementError, match="altered after signing"):
        checked(made | {"content": {"a": 2}}, "receipt")
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="no signing key"):
        signing_key(tmp_path / "key")


def test_a_secret_is_made_once_and_never_half(tmp_path) -> None:
    """Who is killed while making it leaves nothing under its name; of several who make one the first one stays."""

    with pytest.raises(KeyboardInterrupt):
        kept_secret(tmp_path / "key", mock.Mock(side_effect=KeyboardInterrupt))
    assert list(tmp_path.iterdir()) == []
    all_there = threading.Barrier(4)

    def made(number: int) -> bytes:
        def late() -> bytes:
            all_there.wait(timeout=60)
            return bytes([number])

        return kept_secret(tmp_path / "key", late)

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(made, range(4)))
    assert found == {(tmp_path / "key").read_bytes()}
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_wrong_file_or_command_is_answered_with_the_right_one(made, tmp_path, capsys):
    bundle = write_bundle(made, tmp_path / "first.json").path
    for wrong, why in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        assert auditor.main([str(wrong)]) == 2
        assert f"{wrong} cannot be read ({why}); name a file that privbo wrote" in capsys.readouterr().err
    for reads, error in ((pb.load, pb.RunError), (Ledger.open, LedgerError)):
        with pytest.raises(error, match="privbo verify-bundle checks a bundle"):
            reads(bundle)
    for name, right in (("statement", "report DIR --statement"), ("verify", "ledger verify"), ("left", "ledger left")):
        refused(name, made, says=f"write privbo {right}")
    refused("nothing", says="No such command 'nothing'")


def test_a_statement_that_was_handed_over_is_never_overwritten(tmp_path) -> None:
    shared = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=9.0, delta=1e-5)
    home = tmp_path / "one"
    small_run(home, privacy=pb.Privacy(epsilon=2.0), ledger=shared).ledger.close()
    first = report_run(home, statement=Told(purpose="a dose", organisation="Clinics")).statement
    bundle = write_bundle(home, statement=first).path
    small_run(tmp_path / "two", privacy=pb.Privacy(epsilon=2.0), ledger=shared).ledger.close()
    with pytest.raises(pb.ConfigurationError, match=r"or name another folder: --out FOLDER/report.html"):
        report_run(home, statement=Told())
    (tmp_path / "folder" / "statement.html").mkdir(parents=True)
    with pytest.raises(pb.ConfigurationError, match=r"statement.html is a folder; move it away"):
        report_run(home, out=tmp_path / "folder" / "report.html", statement=Told())
    with pytest.raises(pb.ConfigurationError, match="it is no statement of this run"):
        write_bundle(tmp_path / "two", statement=first)
    assert auditor.verify_bundle(bundle, statement=first).verified
    again = report_run(home, out=tmp_path / "later" / "report.html", statement=Told(purpose="two doses")).statement
    page = again.read_text()
    assert ("two doses" in page, "Clinics" in page, "of 2 runs" in page) == (True, True, True)
    (home / "statement.json").write_text('{"purpose": 7}')
    with pytest.raises(pb.ConfigurationError, match="holds no words of a statement"):
        report_run(home, statement=Told())
