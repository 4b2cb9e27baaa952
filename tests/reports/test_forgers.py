"""What a forger may do to a bundle: every path of it, every kind of event, every character, every broken file."""

import copy
import hashlib
import json
import math
import re
import warnings
from base64 import b64decode, b64encode
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import privbo as pb
from accountant.events import Basic, Composed, Event, NonPrivate, compose, to_dict
from accountant.ledger.chain import Identity, row_digest
from accountant.ledger.policy import canonical
from accountant.ledger.signing import ANSWERED, BUNDLE, RECEIPT, sign
from accountant.verify import auditor, events, reading, statement
from accountant.verify.recomputation import Recomputation
from privbo.reports.bundle import write_bundle
from tests.accountant.builders import EXAMPLES, POISSON, declared, gaussian, laplace, new_ledger, poisson
from tests.cli.test_text import NAMED, require_harmless
from tests.reports.auditors import alone, as_read
from tests.reports.runs import small_run

Path_ = tuple[str | int, ...]
FORGER = Ed25519PrivateKey.generate()
SETTINGS = {"privacy": {"noise_multiplier": 4.0}}
PLAN = {"public_seed": 1, "created": "2026-11-24", "caveat": None}


def signed(content, path, purpose: str = BUNDLE):
    """A file as the forger signs it."""
    path.write_text(json.dumps(sign(FORGER, purpose, content)))
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A bundle beside its run, which has everything that a bundle may have."""
    home = tmp_path_factory.mktemp("forgers") / "run"
    made = small_run(home, privacy=pb.Privacy(epsilon=2.0, trust="guardians"))
    made.ledger.close()
    (home / "statement.html").write_text(f"a sheet of {made.run_id}")
    return write_bundle(home, statement=home / "statement.html").path


@pytest.fixture(scope="module")
def sound(guarded) -> dict:
    return json.loads(guarded.read_text())["content"]


def test_a_statement_is_held_to_the_hash_that_was_signed(sound: dict, tmp_path) -> None:
    sheet, other = tmp_path / "statement.html", tmp_path / "other.html"
    sheet.write_text(f"a sheet of {sound['run']}")
    other.write_text(f"a sheet of {sound['run']}, with a smaller epsilon")
    bundle, without = signed(sound, tmp_path / "a.json"), signed(removed(sound, ("statement",)), tmp_path / "b.json")
    missing = tmp_path / "none.html"
    for file, told, code in ((bundle, sheet, 0), (bundle, other, 3), (without, sheet, 3), (bundle, missing, 2)):
        assert auditor.main([str(file), "--statement", str(told)]) == code


def paths(value, here: Path_ = ()):
    """Every path below a table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in items:
        yield (*here, key)
        yield from paths(held, (*here, key))


def at(content, path: Path_):
    for key in path:
        content = content[key]
    return content


def replaced(content: dict, path: Path_, value: object) -> dict:
    found = copy.deepcopy(content)
    at(found, path[:-1])[path[-1]] = value
    return found


def removed(content: dict, path: Path_) -> dict:
    found = copy.deepcopy(content)
    del at(found, path[:-1])[path[-1]]
    return found


def others(value) -> list[object]:
    """Other values, of the same type and of others."""
    found = [None, True, False, 0, 1, -1, 0.5, 1e-6, 1e300, "", "x", "Flower", [], {}, [value], {"a": value}]
    match value:
        case bool():
            found.append(not value)
        case int() | float():
            found += [value + 1, value - 1, value * 0.999, value * 1.001, str(value), -value]
        case str():
            found += [f"{value}x", value[:-1], value[::-1], value.upper(), f" {value}", f"{value}\n"]
        case list():
            found += [value[:-1], value[1:], value[::-1], [*value, *value[-1:]], [*value, "x"]]
        case dict():
            found += [value | {"more": 1}, dict(list(value.items())[1:])]
    return [other for other in found if canonical(other) != canonical(value)]


def forgeries(content: dict):
    yield (), content | {"approved": "by the board"}
    for path in paths(content):
        yield path, removed(content, path)
        for other in others(at(content, path)):
            yield path, replaced(content, path, other)


def outcome(content, file) -> str:
    """Outcome of a check, which may raise no error but its own."""
    try:
        return auditor.verify_bundle(signed(content, file)).outcome
    except reading.BundleError:
        return "no bundle"


def test_nothing_of_a_bundle_can_be_changed_but_what_is_on_the_list(sound: dict, tmp_path) -> None:
    assert outcome(sound, tmp_path / "same.json") == "VERIFIED"
    tried, passed = 0, set()
    for path, forged in forgeries(sound):
        tried += 1
        if outcome(forged, tmp_path / "forged.json") not in ("NOT VERIFIED", "no bundle"):
            passed.add(".".join("*" if isinstance(key, int) else key for key in path))
    assert tried > 2000
    assert passed == {path for path, _ in statement.BY_WORD}  # and what is on the list needs to be


def test_the_list_is_told_on_the_page(sound: dict, tmp_path) -> None:
    page = auditor.verify_bundle(signed(sound, tmp_path / "same.json")).page
    assert all(words in page for _, words in statement.BY_WORD)


@pytest.mark.parametrize("quote", ["epsilon", "total"])
def test_no_quote_below_the_lower_end_verifies_and_any_above_does(quote: str, sound: dict, tmp_path) -> None:
    least = sound["quoted"][quote]
    for value in (0, 0.0, 1e-300, 1e-6, least / 2, least * 0.9999):
        assert outcome(replaced(sound, ("quoted", quote), value), tmp_path / "low.json") == "NOT VERIFIED"
    for value in (least, least * 2, None):
        assert outcome(replaced(sound, ("quoted", quote), value), tmp_path / "high.json") == "VERIFIED"


def test_a_bundle_holds_what_every_guardian_has_signed(guarded) -> None:
    done = alone(guarded)
    assert done.returncode == 0, done.stdout
    assert "every guardian has signed every release, once" in done.stdout
    for card in json.loads(guarded.with_name("guardians.json").read_text())["cards"].values():
        assert card["signing"] in done.stdout
        assert card["sealing"] not in guarded.read_text()  # nothing that no check needs
    assert "IN ONE PROCESS, WHICH SAW EVERY VECTOR" in done.stdout


def signed_anew(rows: list[dict], at: int, **changes: object) -> None:
    """A row as a guardian whose key the forger holds would sign it."""
    content = {name: value for name, value in rows[at].items() if name not in ("key", "signature")} | changes
    made = sign(FORGER, ANSWERED, content)
    rows.append(content | {"key": made["key"], "signature": made["signature"]})
    rows.sort(key=lambda row: row["round"])


UNSIGNED = {
    "two sums of one round": lambda c: signed_anew(c["guardians"]["signed"], 0, sum="0" * 64),
    "another key than the card's": lambda c: signed_anew(c["guardians"]["signed"], -1, round=99, sequence=99),
    "a ledger that went back": lambda c: signed_anew(c["guardians"]["signed"], -1, round=99, sequence=1),
    "a stranger": lambda c: signed_anew(c["guardians"]["signed"], 0, guardian="guardian9"),
    "another run's": lambda c: signed_anew(c["guardians"]["signed"], 0, run="other"),
    "one guardian twice": lambda c: c["guardians"]["cards"].update(guardian2=c["guardians"]["cards"]["guardian1"]),
    "guardians that the settings do not name": lambda c: c["settings"]["privacy"].update(trust="server"),
}


@pytest.mark.parametrize("forgery", UNSIGNED)
def test_a_bundle_that_a_guardian_did_not_sign_does_not_verify(forgery: str, sound: dict, tmp_path) -> None:
    content = copy.deepcopy(sound)
    UNSIGNED[forgery](content)
    assert outcome(content, tmp_path / "forged.json") in ("NOT VERIFIED", "no bundle")


def test_a_guardian_whose_signing_key_was_replaced_is_named_with_both(sound: dict, tmp_path) -> None:
    content = copy.deepcopy(sound)
    found, old = content["guardians"], content["guardians"]["cards"]["guardian2"]
    last = found["signed"].index([row for row in found["signed"] if row["guardian"] == "guardian2"][-1])
    signed_anew(found["signed"], last)
    found["signed"].pop(last)
    found["cards"]["guardian2"] = found["signed"][-1]["key"]
    checked = auditor.verify_bundle(signed(content, tmp_path / "rotated.json"))
    assert checked.verified, checked.problems
    assert any(f"earlier {old}" in words for words in checked.statement)


def ledger_content(event, *, quoted=1e-06, run="r", population="p", caveat=None):
    """A bundle of a ledger whose one run released this event, whoever wrote it."""
    source = {"noise_source": "none" if isinstance(event, NonPrivate) else "secure"}
    stated = {"adjacency": "zero-out", "releases": declared(run, 1, event).releases, "event": to_dict(event)}
    plan = PLAN | {"caveat": caveat, "plan": stated}
    told = (json.dumps(SETTINGS, sort_keys=True).encode(), canonical(plan))
    settings, digest = (hashlib.sha256(content).hexdigest() for content in told)
    reserved = declared(run, 1, event, settings=settings, plan=digest, **source)
    with new_ledger(population=population) as ledger:
        ledger.reserve(reserved)
        ledger.charge(f"{run}/0", next(iter(reserved.slots)), run=run, **source)
        ledger.store_release(f"{run}/0", b"{}")
        rows = [
            [[row.sequence, row.release_id, b64encode(row.body).decode(), row.previous, row.digest] for row in chain]
            for chain in (ledger.book().rows, ledger.release_rows())
        ]
        identity = {"ledger_id": ledger.ledger_id, "policy": ledger.stored_policy}
    return {
        "format": auditor.FORMAT,
        "run": run,
        "ledger": identity | {"charges": rows[0], "releases": rows[1]},
        "settings": SETTINGS,
        "plan": plan,
        "quoted": {"epsilon": quoted, "total": quoted},
    }


KINDS: dict[type, Event] = {type(event): event for event in EXAMPLES.values()}
KINDS[Composed] = compose([(POISSON, 10), (laplace(1.0), 2)])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_next_to_nothing_is_never_verified_for_any_kind_of_event(kind: type, tmp_path) -> None:
    """A kind that is added to the accountant is missing among the examples, and fails here."""
    assert KINDS.keys() == {*Basic.kinds.values(), Composed}
    assert outcome(ledger_content(KINDS[kind]), tmp_path / "low.json") == "NOT VERIFIED"
    assert outcome(ledger_content(KINDS[kind], quoted=None), tmp_path / "high.json") == "VERIFIED"


@pytest.mark.parametrize("kind", Basic.kinds.values(), ids=lambda kind: kind.__name__)
def test_the_auditors_own_decoding_knows_every_kind_of_event_by_the_same_fields(kind: type) -> None:
    made = KINDS[kind]
    ((read, count),) = as_read(made).parts
    assert (type(read).__name__, count) == (kind.__name__, 1)
    for field in fields(read):
        ours, theirs = getattr(made, field.name), getattr(read, field.name)
        assert theirs == (as_read(ours) if isinstance(ours, Composed) else ours)
    assert {field.name for field in fields(read)} == {field.name for field in fields(made)}
    for name, value in to_dict(made).items():
        for other in (None, True, "x", -1, -1.5, [], math.inf):
            if name == "eta" and other == -1.0:
                continue
            with pytest.raises((reading.BundleError, KeyError, TypeError, ValueError, OverflowError)):
                refused(to_dict(made) | {name: other}, name, value)


def refused(content: dict, name: str, value: object) -> None:
    """Read an event of which one field was changed; a kind that nobody knows is not computed, and not refused."""
    found = events.composed(events.parts_of(content))
    if name == "type" and isinstance(found.parts[0][0], events.Unknown):
        raise reading.BundleError(str(value))


def test_next_to_nothing_is_never_verified_for_very_many_releases(tmp_path) -> None:
    assert outcome(ledger_content(poisson(0.01, 1.0, 10**5)), tmp_path / "low.json") == "NOT VERIFIED"


ENDS = {
    "nothing computed": (None, "NOT COUNTED"),
    "an upper end alone": (Recomputation(lower=0.0, upper=3.0, how="so"), "NOT COUNTED"),
    "a lower end below": (Recomputation(lower=0.9, upper=3.0, how="so"), "VERIFIED"),
    "a lower end above": (Recomputation(lower=1.1, upper=3.0, how="so"), "NOT VERIFIED"),
    "no number": (Recomputation(lower=math.nan, upper=3.0, how="so"), "NOT VERIFIED"),
    "nothing released": (Recomputation(lower=0.0, upper=0.0, how="exact"), "VERIFIED"),
}


@pytest.mark.parametrize("ends", ENDS)
def test_verified_means_that_a_lower_end_was_compared(ends, tmp_path, monkeypatch, capsys):
    found, expected = ENDS[ends]
    monkeypatch.setattr(statement, "recomputed", lambda *_: found)
    file = signed(ledger_content(gaussian(4.0), quoted=1.0), tmp_path / "bundle.json")
    assert auditor.main([str(file)]) == {"VERIFIED": 0, "NOT VERIFIED": 3, "NOT COUNTED": 4}[expected]
    page = capsys.readouterr().out
    assert page.startswith(f"{expected}: bundle of 'r'\n")
    assert ("What was promised" in page) == (expected != "NOT VERIFIED")  # of what does not hold nothing is stated
    if expected == "NOT COUNTED":
        assert "no lower end is certified" in page


def test_no_string_of_a_bundle_steers_the_terminal(sound, tmp_path, capsys):
    for path in paths(sound):
        if isinstance(at(sound, path), str):
            auditor.main([str(signed(replaced(sound, path, at(sound, path) + NAMED), tmp_path / "f.json"))])
        if isinstance(path[-1], str):
            renamed = removed(sound, path)
            at(renamed, path[:-1])[path[-1] + NAMED] = at(sound, path)
            auditor.main([str(signed(renamed, tmp_path / "f.json"))])
    printed(capsys)


def printed(capsys) -> str:
    """What checks have printed, their own marks apart, which steers no terminal."""
    text = re.sub("^  ok           (the|every|settings|plan,|what) ", "", "".join(capsys.readouterr()), flags=re.M)
    require_harmless(text)
    return text


def test_no_name_on_a_ledger_of_the_forgers_own_steers_the_terminal(tmp_path, capsys):
    """The forger's own ledger, which holds: population, run, releases and caveat are all of its choosing."""
    content = ledger_content(gaussian(4.0), quoted=5.0, run=NAMED, population=f"p{' ' * 90}ok {NAMED}", caveat=NAMED)
    receipt = signed({"run": NAMED, "ledger": NAMED, "sequence": 1, "head": NAMED}, tmp_path / "r.json", RECEIPT)
    renamed = receipt.rename(tmp_path / f"receipt{NAMED}".replace("\0", "").replace("/", ""))
    file = str(signed(content, tmp_path / "bundle.json"))
    assert auditor.main([file]) == 0
    assert auditor.main([file, "--receipt", str(renamed)]) == 3
    assert auditor.main([f"{file}{NAMED}".replace("\0", "")]) == 2
    assert "  " * 20 not in printed(capsys)  # nor is a line filled until the next one begins


def test_the_page_and_an_error_write_out_what_was_not_quoted(sound, tmp_path, capsys):
    found = auditor.verify_bundle(signed(sound, tmp_path / "bundle.json"))
    hostile = replace(found, run=NAMED, checks=(), uncounted=(NAMED,), statement=(NAMED,), word=(NAMED,), head=NAMED)
    require_harmless(hostile.page)
    require_harmless(replace(hostile, problems=(NAMED,), unknown=(NAMED,), key=NAMED).page)
    broken = tmp_path / NAMED.replace("\0", "")
    broken.write_text("{}")
    assert auditor.main([str(broken)]) == 3
    require_harmless(capsys.readouterr().err)


def test_a_terminal_of_few_characters_shows_the_page(tmp_path, monkeypatch) -> None:
    content = ledger_content(gaussian(4.0), quoted=5.0, population="Zürich")
    file, shown = signed(content, tmp_path / "bundle.json"), (tmp_path / "page.txt").open("w", encoding="ascii")
    with shown:
        monkeypatch.setattr("sys.stdout", shown)
        assert auditor.main([str(file)]) == 0
    assert r"Z\xfcrich" in (tmp_path / "page.txt").read_text()


BROKEN = {
    "nothing": lambda: b"",
    "a page": lambda: b"<html>",
    "a picture": lambda: b"\xff\xfe\x00",
    "half a table": lambda: b'{"content": ',
    "a list": lambda: b"[]",
    "null": lambda: b"null",
    "a number": lambda: b"7",
    "another encoding": lambda: b"\xff\xfe{\x00}\x00",
    "a deep list": lambda: b"[" * 200_000,
    "a deep table": lambda: b'{"content":' * 100_000,
    "a deep content": lambda: b'{"content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b',"key":"","signature":""}',
    "a huge number": lambda: b'{"content": ' + b"9" * 5000 + b', "key": "", "signature": ""}',
    "no number": lambda: b'{"content": NaN, "key": "", "signature": ""}',
    "infinity": lambda: b'{"content": {"a": 1e999}, "key": "", "signature": ""}',
    "a key twice": lambda: b'{"content": {}, "content": {}, "key": "", "signature": ""}',
    "a key that is a number": lambda: b'{"content": {}, "key": 7, "signature": []}',
    "a key that is none": lambda: json.dumps({"content": {}, "key": "f" * 64, "signature": "0" * 128}).encode(),
    "letters beyond text": lambda: json.dumps({"content": {"run": "\ud800"}, "key": "", "signature": ""}).encode(),
    "a signed number": lambda: json.dumps(sign(FORGER, BUNDLE, 7)).encode(),
    "a signed list": lambda: json.dumps(sign(FORGER, BUNDLE, [[]])).encode(),
    "a signed table of nothing": lambda: json.dumps(sign(FORGER, BUNDLE, {})).encode(),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_no_bundle_in_one_line(broken, tmp_path, capsys):
    (tmp_path / "broken.json").write_bytes(BROKEN[broken]())
    assert auditor.main([str(tmp_path / "broken.json")]) == 3
    done = capsys.readouterr()
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert ("is an altered bundle: " if broken == "a key that is none" else "is no bundle: ") in done.err
    if broken in ("nothing", "half a table", "a page", "a picture"):
        assert "is no bundle: it holds no JSON; give the file that privbo wrote" in done.err


def charges(content: dict) -> list[tuple[str, dict]]:
    """Names and bodies of a ledger's rows."""
    return [(row[1], json.loads(b64decode(row[2]))) for row in content["ledger"]["charges"]]


def linked(content: dict, rows: list[tuple[str, dict]], kind: str = "charges") -> dict:
    """A ledger of these rows, whose digests follow one another."""
    found = copy.deepcopy(content)
    ledger, made = found["ledger"], []
    before = Identity(ledger_id=ledger["ledger_id"], policy=ledger["policy"]).genesis(kind)
    for place, (name, content_of_row) in enumerate(rows, 1):
        body = json.dumps(content_of_row).encode()
        made.append([place, name, b64encode(body).decode(), before, row_digest(before, place, name, body)])
        before = made[-1][4]
    ledger[kind] = made
    return found


def twice(plan: tuple[str, dict]) -> tuple[str, dict]:
    """A plan of which every release may be made twice."""
    return plan[0], plan[1] | {"events": [[event, 2 * count] for event, count in plan[1]["events"]]}


REORDERED = {
    "a plan again": lambda plan, charge: [plan, ("again", plan[1]), charge],
    "a plan after a release": lambda plan, charge: [charge, plan],
    "a release charged twice": lambda plan, charge: [twice(plan), charge, charge],
    "a charge under another name": lambda plan, charge: [twice(plan), ("r/1", charge[1]), charge],
    "a release more than planned": lambda plan, charge: [plan, charge, ("r/1", charge[1] | {"release_id": "r/1"})],
    "another unit": lambda plan, charge: [plan, (charge[0], charge[1] | {"unit": "reward"})],
    "another adjacency": lambda plan, charge: [plan, (charge[0], charge[1] | {"adjacency": "replace-one"})],
    "another population": lambda plan, charge: [plan, (charge[0], charge[1] | {"population": "q"})],
    "other clients": lambda plan, charge: [(plan[0], plan[1] | {"n_clients": 4000}), charge],
    "other noise than planned": lambda plan, charge: [plan, (charge[0], charge[1] | {"noise_source": "simulation"})],
}


@pytest.mark.parametrize("forgery", REORDERED)
def test_rows_that_follow_one_another_and_mean_nothing_do_not_verify(forgery: str, tmp_path) -> None:
    content = ledger_content(gaussian(4.0), quoted=50.0)
    plan, charge = charges(content)
    assert outcome(linked(content, [plan, charge]), tmp_path / "same.json") == "VERIFIED"
    assert outcome(linked(content, REORDERED[forgery](plan, charge)), tmp_path / "forged.json") == "NOT VERIFIED"


def of_events(*parts: tuple[dict, int], stated: dict | None = None) -> dict:
    """A bundle whose rows reserve and charge these events, with their own digests; its plan may state others."""
    content = ledger_content(gaussian(2.0), quoted=5.0)
    (plan, body), (charge, row) = charges(content)
    events = {"type": "composed", "parts": [list(part) for part in parts]}
    content["plan"]["plan"]["event"] = stated or events
    digest = hashlib.sha256(canonical(content["plan"])).hexdigest()
    rows = [(plan, body | {"events": [[events, 1]], "plan": digest}), (charge, row | {"event": events})]
    return linked(content, rows)


TWO = {"type": "gaussian", "noise_multiplier": 2.0}
OTHERS = TWO | {"type": "fixed-size-sampled-gaussian", "n_clients": 10**6, "sample_size": 20}


@pytest.mark.parametrize(
    ("content", "said", "because"),
    [
        (of_events((TWO, 1)), "VERIFIED", ""),
        (of_events((TWO | {"noise_multiplier": 200.0}, 1), stated=TWO), "NOT VERIFIED", "the plan has other events"),
        (of_events((OTHERS, 1)), "NOT VERIFIED", "samples from 1000000 clients, the ledger speaks of 40"),
        (of_events((TWO, 1), ({"type": "plain-sum"}, 19)), "NOT COUNTED", "a kind of release that this check can't"),
    ],
    ids=["sound", "another noise", "another population", "an unknown kind"],
)
def test_events_are_those_of_the_plan_and_of_the_clients_and_all_are_counted(content, said, because, tmp_path):
    found = auditor.verify_bundle(signed(content, tmp_path / "bundle.json"))
    assert (found.outcome, because in found.page) == (said, True), found.page


def test_only_rewards_enter_one_release_each(tmp_path) -> None:
    content = ledger_content(gaussian(2.0), quoted=5.0)
    policy = json.loads(content["ledger"]["policy"])
    for disjoint, said in ((True, "NOT VERIFIED"), (1, "NOT VERIFIED"), (False, "VERIFIED")):
        content["ledger"]["policy"] = canonical(policy | {"disjoint": disjoint}).decode()
        forged = linked(linked(content, charges(content)), [("r/0", {})], "releases")
        assert outcome(forged, tmp_path / "disjoint.json") == said


def test_a_release_under_any_name_needs_its_guardians(sound: dict, tmp_path) -> None:
    run = sound["run"]
    renamed = [(name.replace(f"{run}/", "round/"), body) for name, body in charges(sound)]
    renamed = [(name, body | ({"release_id": name} if "release_id" in body else {})) for name, body in renamed]
    stored = [(name, {}) for name, _ in renamed if name.startswith("round/")]
    forged = linked(linked(sound, renamed), stored, "releases")
    forged["guardians"]["signed"] = []
    found = auditor.verify_bundle(signed(forged, tmp_path / "bundle.json"))
    assert stored
    assert "names no round that guardians could have signed" in found.page


@pytest.mark.parametrize(("times", "said"), [(1, "VERIFIED"), (2, "NOT VERIFIED")])
def test_a_release_is_stored_once(times: int, said: str, tmp_path) -> None:
    content = ledger_content(gaussian(4.0), quoted=50.0)
    assert outcome(linked(content, times * [("r/0", {})], "releases"), tmp_path / "stored.json") == said


def test_no_row_of_a_ledger_crashes_the_check(tmp_path) -> None:
    """The forger chains its own ledger anew: rows of every shape are refused, or count for what they say."""
    content = ledger_content(gaussian(4.0), quoted=1e-6)
    rows = charges(content)
    assert outcome(linked(content, rows), tmp_path / "same.json") == "NOT VERIFIED"
    for place, (name, body) in enumerate(rows):
        for path in paths(body):
            for other in (*others(at(body, path)), 10**400, 10**300, 1e-320, NAMED):
                changed = linked(content, [*rows[:place], (name, replaced(body, path, other)), *rows[place + 1 :]])
                with warnings.catch_warnings(action="ignore"):
                    assert outcome(changed, tmp_path / "forged.json") in ("NOT VERIFIED", "NOT COUNTED"), (path, other)


def test_guardians_are_where_a_run_may_have_them_and_nowhere_else(sound: dict, tmp_path) -> None:
    elsewhere = replaced(sound, ("guardians", "where"), "a vault")
    assert outcome(elsewhere, tmp_path / "where.json") == "NOT VERIFIED"
    unguarded = ledger_content(gaussian(4.0), quoted=5.0)
    assert outcome(unguarded, tmp_path / "none.json") == "VERIFIED"
    unguarded["guardians"] = sound["guardians"]
    assert outcome(unguarded, tmp_path / "unnamed.json") == "NOT VERIFIED"


def test_a_rows_body_is_written_in_one_way_alone(tmp_path) -> None:
    """The last digits of base64 hold spare bits, which no digest covers."""
    content = ledger_content(gaussian(4.0), quoted=5.0)
    content["ledger"]["releases"][0][2] = "e31="
    assert b64decode("e31=", validate=True) == b"{}"
    assert outcome(content, tmp_path / "spare.json") == "NOT VERIFIED"
