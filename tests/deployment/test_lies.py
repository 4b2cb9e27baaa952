"""A consistently hostile server gets nothing that was not approved and paid for, whatever it lies about.

It tells all parties the same untruth, in its files, its messages or its ledger. What it can lie about is generated from
the types: settings in the files that it ships, fields of its messages, fields of its ledger's rows. A field that is new
and has no lie yet fails here.
"""

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from accountant import numerical
from accountant.errors import PrivacyError
from accountant.events import to_dict
from accountant.ledger import Ledger
from accountant.ledger.book import Declaration
from accountant.ledger.chain import Row, decode_rows, encode_rows, row_digest
from accountant.ledger.pricing import total
from privbo.algorithms.elimination.fed_pne import FedPNE
from privbo.flower.messages import GuardianQuestion, Question, decode, encode, nonce_of
from privbo.flower.party import approved_run, ledger_path, read_party, read_site
from privbo.flower.registry import public_spec
from privbo.flower.server import serve
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import RefusedError, RunError
from privbo.protocol.files import load_arrays, read_lines
from privbo.protocol.messages import Broadcast, FloatArray, Standing
from privbo.runs.evidence import declared_by
from privbo.runs.manifest import derive_seed
from privbo.runs.opening import plan_run
from privbo.runs.spec import Spec
from tests.deployment.federations import ALGORITHMS, Federation, change, ledger_of, make, unasked
from tests.deployment.grid import LoopGrid, Node
from tests.deployment.processes import deployed, start_parties
from tests.deployment.test_own_noise import PROBLEM, SITES, exact, federation_of, sent, spent

pytestmark = pytest.mark.filterwarnings("ignore:delta = 1 is above 1/N")  # one of the lies

NAMES = ("guardian1", "guardian2")
TRUSTED = {"epsilon": 2.0, "delta": 1e-6}
GUARDED = {"epsilon": 2.0, "delta": 1e-6, "trust": "guardians"}
POLICY = {"epsilon": 4.0, "delta": 1e-6}


def trusting(root, **changes: object) -> Federation:
    return make(root, rounds=2, seed=None, policy=POLICY, **{"privacy": TRUSTED} | changes)


def guarded(root, **changes) -> Federation:
    privacy = GUARDED | changes.pop("privacy", {})
    policy = POLICY | {"unit": privacy.get("unit", "client")}
    settings = {"rounds": 2, "seed": None, "start_timeout": 2.0} | changes
    return make(root, privacy=privacy, policy=policy, guardians=NAMES, **settings)


# Another value of every setting of privacy; the server's own copy of the files has it, the approved ones do not.
PRIVACY = {
    "epsilon": 1000.0,
    "noise_multiplier": 1e-5,
    "sample_rate": 0.5,
    "delta": 1.0 - 1e-15,
    "calibration": "paper",
    "sampling": "fixed-size",
    "max_cohort": 3,
    "participations": 1,
    "adaptive_clipping": {"initial": 1e3, "target_quantile": 0.9},
    "budget": 1e6,
    "noise": "simulation",
    "channel": "anonymous",
    "unit": "other",  # the one that the run does not have
    "trust": "other",
    "guardians": 3,
    "against": "guardian",
    "protects": "records",
    "records_per_person": 2,
}
RUN = {
    "name": "another",
    "problem": {"n_clients": 7, "space": {"x": {"type": "real", "low": 0.0, "high": 2.0}}, "name": "bumps"},
    "algorithm": {"type": "fed-pne", "horizon": 300, "c": 0.01},
    "privacy": {"none": True},
    "rounds": 4,
    "seed": 5,
    "ledger": {"path": "LEDGER", "population": "somebody", "epsilon": 1e6, "delta": 0.5},
    "attendance": {"dropout": 0.5},
    "final": "common",
    "final_share": 0.9,
    "control": "zeroed",
    "times": {"round_seconds": 2.0},
    "evaluation_seconds": 5.0,
}
ALGORITHM = {
    "horizon": 500,
    "nu1": 3.0,
    "rho": 0.9,
    "n_children": 3,
    "reward_range": [0.0, 1e-6],
    "evaluations": 5,
    "clip": 1e6,
    "widen": 2.0,
    "centre": "client",
    "c": 0.5,
    "c1": 2.0,
    "cap": 2,
    "type": "parallel",
    "tail": "stop",
    "releases": 1,
    "release_when": "useful",
}
# Settings that are of this machine alone: they do not enter a run's identity, and there is no lie about them.
OWN = {"directory", "device", "threads", "executor", "jobs", "policy", "controls"}


# Another value of the same type.
_CHANGED = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value * 1e-6,
    str: lambda value: value[:-1] + "1" if value.endswith("0") else value + "0",
    bytes: lambda value: value[:-1] + bytes([value[-1] ^ 1]) if value else b"x",
    list: lambda value: value[1:] if value else [value],
}


def _bent(message, name: str):
    """Change one field of a message; of a broadcast's arrays every entry."""
    value = getattr(message, name)
    if value is None:
        return message
    if isinstance(value, Mapping):
        return dataclasses.replace(message, **{name: {key: _other(array) for key, array in value.items()}})
    return dataclasses.replace(message, **{name: _CHANGED[type(value)](value)})


def _other(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return ~array
    return array + 1 if array.dtype.kind in "iu" else array * 1e-6


def fields_of(*kinds: tuple[type, set[str]]) -> dict[str, tuple[type, str]]:
    """Every field of some kinds of messages but those that are named; nested messages have lies of their own."""
    each = [(kind, field.name) for kind, but in kinds for field in dataclasses.fields(kind) if field.name not in but]
    return {f"{kind.__name__}.{name}": (kind, name) for kind, name in each}


TO_SITES = fields_of((Question, {"broadcast", "standing"}), (Standing, set()), (Broadcast, set()))
TO_GUARDIANS = fields_of((GuardianQuestion, {"broadcast", "kind"}), (Broadcast, set()))


def bend_question(asked: type, kind: type, name: str, message) -> None:
    """Change a field of a question to a site or a guardian, or of what is in it."""
    if asked.record not in message.content.config_records:
        return
    question, nonce = decode(asked, message.content), nonce_of(asked, message.content)
    if isinstance(question, GuardianQuestion) and question.kind == "meet":
        return
    part = {Standing: "standing", Broadcast: "broadcast"}.get(kind)
    if part is None:
        question = _bent(question, name)
    elif (inner := getattr(question, part)) is not None:
        question = dataclasses.replace(question, **{part: _bent(inner, name)})
    put(message, encode(question, nonce))


def put(message, content) -> None:
    """Put other content into a message on its way."""
    message.content.config_records.update(content.config_records)
    message.content.array_records.update(content.array_records)


def bend_rows(change, message) -> None:
    """Show a site another ledger, every digest of which is right: ``change`` gives other contents of a row, or None."""
    if Question.record not in message.content.config_records:
        return
    question, nonce = decode(Question, message.content), nonce_of(Question, message.content)
    rows, plan = list[Row](), question.standing.plan
    for row in decode_rows(question.chain):
        content = json.loads(row.body)
        other = change(content)
        previous = rows[-1].digest if rows else row.previous
        body = row.body if other is None else json.dumps(other).encode()
        digest = row_digest(previous, row.sequence, row.release_id, body)
        plan = digest if row.digest == question.standing.plan else plan
        rows.append(dataclasses.replace(row, body=body, previous=previous, digest=digest))
    standing = dataclasses.replace(question.standing, plan=plan, head=rows[-1].digest)
    put(message, encode(dataclasses.replace(question, standing=standing, chain=encode_rows(rows)), nonce))


def play(federation: Federation, nodes: list[Node], home=None, bend=lambda _: None) -> LoopGrid:
    """Play a run by a hostile server, which does not ask beforehand and bends every message, as far as it comes."""
    grid = LoopGrid(nodes, lambda messages: list(map(bend, messages)))
    with suppress(PrivacyError), unasked():
        serve(grid, home or federation.home, federation.run)
    return grid


def vectors_of(grid: LoopGrid) -> list[bytes]:
    """Everything that left sites in answers."""
    return [bytes(vector) for reply in grid.answers for vector in reply.get("vectors", [])]


def sent_vectors(federation: Federation):
    """Answers in the clear that sites have written down to send; a round of local work has none."""
    found = []
    for path in federation.root.glob("*/kept/*/sent/*.npz"):
        arrays = load_arrays(path)
        found += [path] if "vectors" in arrays and arrays["vectors"].shape[1] else []
    return found


def require_paid(federation: Federation, guardians: tuple[str, ...]) -> int:
    """Hold every guardian's ledgers to the approved plan; returns how many sums they have answered.

    Every sum was charged before, with the noise of the approved plan, on a ledger with the approved bound; and the
    whole plan stands in the ledger of all runs.
    """
    plan, answered = plan_run(public_spec(federation.home)), 0
    for name in guardians:
        kept = federation.root / name / "kept"
        for path in [path for path in kept.glob("*/ledger.sqlite") if path.parent.name != "_policy"]:
            with Ledger.open(path) as ledger:
                entries, rows = ledger.entries(), ledger.release_rows()
                assert ledger.verify().ok
                assert {row.release_id for row in rows} <= {entry.release_id for entry in entries}
                assert all(entry.event in dict(plan.schedule) for entry in entries)
                assert ledger.policy.budget.delta == plan.delta
                assert ledger.policy.budget.epsilon <= 2.0 * (1 + 1e-6)
                spent = total(ledger.book(), plan.delta).epsilon
                assert spent <= numerical.epsilon(plan.event, plan.delta, adjacency=plan.adjacency) * (1 + 1e-6)
                answered += len(rows)
            with Ledger.open(kept / "_policy" / "ledger.sqlite") as ledger:
                assert path.parent.name in ledger.book().runs
    return answered


def refusals(federation: Federation, party: str):
    """What a party has refused, from its own disk."""
    return read_lines(federation.root / party / "kept" / "refused.jsonl")


# --- the tests ---------------------------------------------------------------------------------------------------


def test_there_is_a_lie_about_every_field() -> None:
    for kind, told in ((Privacy, PRIVACY), (Spec, RUN), (FedPNE, ALGORITHM)):
        assert {each.name for each in dataclasses.fields(kind) if each.init} - OWN == set(told), kind


# --- files ----------------------------------------------------------------------------------------------------

SHIPPED = {f"privacy.{name}": value for name, value in PRIVACY.items()} | RUN
SHIPPED |= {f"algorithm.{name}": value for name, value in ALGORITHM.items()}


@pytest.mark.parametrize("name", ["run.toml", "federation.toml"])
def test_no_party_serves_a_file_that_differs_in_a_byte(name: str, tmp_path) -> None:
    """Each difference is another digest, which is held before anything else is read; not even a comment may differ."""
    federation = guarded(tmp_path)
    federation.approve()
    path = federation.home / name
    path.write_text(f"# another\n{path.read_text()}")
    for party in map(read_party, federation.party_files):
        with pytest.raises(RefusedError, match=f"{name}: found .*privbo flower approve {party.role}.toml"):
            approved_run(federation.home, party)


# --- another run than the approved one, played under its files ---------------------------------------------------


OTHERS = {
    "unit": {"client": "reward", "reward": "client", "record": "client"},
    "trust": {"server": "guardians", "guardians": "server", "sites": "server"},
}


def lying_home(federation: Federation, key: str, told=SHIPPED):
    """The server's own copy of the app with a lie in its ``run.toml``."""
    asked, value = tomllib.loads((federation.home / "run.toml").read_text()), told[key]
    key = key.partition(" ")[0]
    table, _, name = key.partition(".")
    if value == "other":
        value = OTHERS[name][asked["privacy"].get(name, next(iter(OTHERS[name])))]
    changed = {table: {name: value}} if name else {key: value}
    match key:
        case "privacy":
            changed = {key: dict.fromkeys(asked[key]) | value}
        case "privacy.noise_multiplier":
            changed[table] |= {"epsilon": None, "delta": None}
        case "algorithm.type":
            changed = {table: dict.fromkeys(asked[table]) | {name: value, "horizon": 400}}
        case "ledger":
            changed = {key: value | {"path": str(federation.root / "population.sqlite")}}
    home = federation.root / "lies"
    shutil.copytree(federation.home, home, dirs_exist_ok=True)
    for name in {"privacy", "algorithm"} & changed.keys():  # merged; None drops a key
        changed[name] = {key: value for key, value in (asked[name] | changed[name]).items() if value is not None}
    change(home / "run.toml", **changed)
    return home


# Those by which guardians were once left without noise: a delta near 1, no noise to speak of, a reward's bound.
NAMED = ["privacy.delta", "privacy.noise_multiplier", "algorithm.reward_range", "privacy", "rounds"]


def first(told: Iterable[str], *given: object):
    """The named ones in every run of the suite, all of them in ``make slow``."""
    return [pytest.param(*given, key, marks=() if key in NAMED else pytest.mark.slow) for key in told]


def forging(federation: Federation):
    """Show a forged ledger: rows as those of the approved run would be."""
    spec = public_spec(federation.home)
    plan = plan_run(spec)
    event = next(event for event, _ in plan.schedule)
    terms = {"unit": plan.unit, "adjacency": plan.adjacency.value, "n_clients": plan.n_clients}

    def change(row):
        if row.get("row") == "reservation":
            return row | declared_by(plan, run=row["run"], settings=spec.digest()).to_dict() | terms
        return row | {"event": to_dict(event)} | terms

    return partial(bend_rows, change)


@pytest.mark.parametrize("unit", ["client", "reward"])
@pytest.mark.parametrize("key", first(key for key in SHIPPED if key not in {"ledger", "times", "attendance"}))
def test_guardians_add_the_approved_noise_or_refuse_whatever_the_server_plays(key: str, unit: str, tmp_path) -> None:
    """The server plays other settings and shows sites a forged ledger, so that they answer."""
    federation = guarded(tmp_path, privacy={"unit": unit})
    nodes = federation.everyone()
    grid = play(federation, nodes, lying_home(federation, key), forging(federation))
    require_paid(federation, NAMES)
    assert not sent_vectors(federation)
    assert all(sent.startswith(b"privbo cipher ") for sent in vectors_of(grid))


def test_an_honest_server_of_the_same_federations_is_answered(tmp_path) -> None:
    """The control: what is refused above is refused for the lie."""
    federation = trusting(tmp_path / "trusting")
    assert vectors_of(play(federation, federation.nodes(), bend=forging(federation)))
    for unit in ("client", "reward"):
        federation = guarded(tmp_path / unit, privacy={"unit": unit})
        grid = play(federation, federation.everyone(), bend=forging(federation))
        assert vectors_of(grid)
        assert require_paid(federation, NAMES) == 2 * len(NAMES)
        assert not any(refusals(federation, party) for party in (*federation.sites, *NAMES))
    federation = federation_of(tmp_path / "hiding")
    assert set(answered(federation, play(federation, federation.nodes(), bend=forging(federation)))) == set(SITES)
    assert not any(refusals(federation, site) for site in SITES)


# --- messages ---------------------------------------------------------------------------------------------------

# A site answers all the same: such a lie moves no number that protects anybody. Of a broadcast the arrays are the
# server's to choose; each choice has its own request, which the site computes.
# The public seed is the server's to draw, and so is what it shows; what is asked for follows from both.
HARMLESS = {"Broadcast.arrays", "Question.public_seed"}


@pytest.mark.parametrize("case", TO_SITES)
def test_a_bent_question_is_refused_by_every_site(case: str, tmp_path) -> None:
    federation, bend = trusting(tmp_path), partial(bend_question, Question, *TO_SITES[case])
    grid = play(federation, federation.nodes(), bend=bend)
    assert grid.answers
    if case not in HARMLESS:
        assert not vectors_of(grid)
        assert not sent_vectors(federation)


@pytest.mark.parametrize("more", [0, 1])
def test_a_silent_phase_takes_no_more_pulls_than_a_site_has_left(more: int, tmp_path) -> None:
    """Planted: every phase is announced as a silent one, for which no ledger has a charge; one pull is too many."""
    federation = trusting(tmp_path, algorithm={"type": "fed-pne", "horizon": 8, "c": 0.02, "release_when": "always"})

    def bend(message) -> None:
        question, nonce = decode(Question, message.content), nonce_of(Question, message.content)
        node = {"nodes": np.array([0]), "pulls": np.array([8 + more]), "sends": np.array(False)}
        silent = dataclasses.replace(question.broadcast, arrays={**question.broadcast.arrays, **node})
        put(message, encode(dataclasses.replace(question, broadcast=silent, released=False), nonce))

    grid = play(federation, federation.nodes(), bend=bend)
    assert grid.answers
    assert not vectors_of(grid)
    pulls = [load_arrays(path)["calls"].sum() for path in sorted(tmp_path.glob("*/kept/*/evaluations.npz"))]
    if more:
        assert pulls == []
        assert {answer["error"] for answer in grid.answers} == {"ConfigurationError"}
    else:  # the control: as many as are left are played
        assert pulls == [8 * 3, 8 * 2, 8 * 2]


@pytest.mark.parametrize("case", TO_GUARDIANS)
def test_a_bent_question_to_all_guardians_is_refused_or_paid_for(case: str, tmp_path) -> None:
    federation, bend = guarded(tmp_path), partial(bend_question, GuardianQuestion, *TO_GUARDIANS[case])
    play(federation, federation.everyone(), bend=bend)
    answered = require_paid(federation, NAMES)
    # A ciphertext less is a client less, and the seed is the server's to draw: no lie about a number that protects.
    # Terms are read in a meeting alone, which reveals nothing.
    harmless = {f"GuardianQuestion.{name}" for name in ("encrypted_shares", "public_seed", "terms")}
    assert bool(answered) == (case in harmless), case


# --- the server's ledger ------------------------------------------------------------------------------------------

_LIES_OF_ROWS = {
    "run": "another",
    "events": [],
    "settings": "0" * 64,
    "delta": 1.0 - 1e-15,
    "noise_source": "none",
    "stopping": "never",
    "kind": "recovery",
    "unit": "reward",
    "adjacency": "replace-one",
    "n_clients": 70,
}
# Of the server's own files and evidence; nothing a site is protected by.
_ITS_OWN = {"plan", "lost", "population"}


def test_there_is_a_lie_about_every_field_of_a_ledgers_plan() -> None:
    fields = {each.name for each in dataclasses.fields(Declaration)} | {"unit", "adjacency", "n_clients", "population"}
    assert fields == set(_LIES_OF_ROWS) | _ITS_OWN


@pytest.mark.parametrize("field", [*_LIES_OF_ROWS, "fewer events", "more events", "charged event"])
def test_sites_refuse_a_ledger_that_declares_something_else(field: str, tmp_path) -> None:
    federation = trusting(tmp_path)

    def change(row):
        if row.get("row") != "reservation":
            quieter = {"event": row["event"] | {"noise_multiplier": 2.0 * row["event"]["noise_multiplier"]}}
            return row | quieter if field == "charged event" else None
        if field in {"fewer events", "more events"}:
            (event, count), *others = row["events"]
            return row | {"events": [[event, count + (1 if field == "more events" else -1)], *others]}
        return row | {field: _LIES_OF_ROWS[field]} if field in _LIES_OF_ROWS else None

    grid = play(federation, federation.nodes(), bend=partial(bend_rows, change))
    assert grid.answers
    assert not vectors_of(grid)
    assert not sent_vectors(federation)


# --- real processes -------------------------------------------------------------------------------------------


@pytest.mark.deployment
def test_real_parties_refuse_what_a_hostile_server_ships_and_pay_for_what_it_plays(tmp_path) -> None:
    """A SuperLink, three sites and two guardians: shipped lies first, then another run under the approved files."""
    federation = guarded(tmp_path, start_timeout=60.0, round_timeout=60.0)
    app, honest = federation.home / "run.toml", (federation.home / "run.toml").read_text()
    code = (federation.home / "federated_app.py").read_text()
    with deployed(federation) as deployment:
        start_parties(deployment, federation)
        for key in ("privacy.delta", "privacy.noise_multiplier"):
            app.write_text((lying_home(federation, key) / "run.toml").read_text())
            with suppress(RunError):
                deployment.play(federation.home, timeout=300)
            app.write_text(honest)
            assert not list(tmp_path.glob("*/kept/*/sent/*.npz"))
            assert not list(tmp_path.glob("*/kept/*/rounds/*.json"))
            shutil.rmtree(federation.run.path, ignore_errors=True)
        for party in (*federation.sites, *NAMES):
            fields = {row["field"] for row in refusals(federation, party)}
            assert fields == {"run.toml"} or (party in NAMES and not fields)  # no ciphertext, so no guardian is asked
        other = lying_home(federation, "algorithm.reward_range")
        lying = code.replace("server_app(HOME)", f"server_app(Path({str(other)!r}))")
        (federation.home / "federated_app.py").write_text(lying)
        with suppress(RunError):
            deployment.play(federation.home, timeout=300)
    require_paid(federation, NAMES)
    assert not sent_vectors(federation)
    # Asked whether it is ready, a site refuses other settings, so that no run is made with them.
    assert {row["field"] for row in refusals(federation, "north")} == {"run.toml", "server's settings"}


# ---- the general lies of a hostile server, told to sites that hide records by noise of their own

LIES = {f"privacy.{name}": value for name, value in PRIVACY.items()} | RUN
LIES |= {"privacy.protects": "validation records"}
LIES |= {"algorithm.front": 64, "algorithm.release_when": "useful", "algorithm.is_shared": False}
LIES |= {"algorithm.type": "parallel"}
LIES |= {
    "problem": PROBLEM | {"score_range": [0.0, 1e-6]},
    "problem of fewer records": PROBLEM | {"n_records": [12, 30, 8]},
    "problem with a training": PROBLEM | {"training": {"type": "gaussian", "noise_multiplier": 0.5}},
}


def answered(federation: Federation, grid: LoopGrid) -> dict[str, FloatArray]:
    """What left each site, held to its noise and to its ledger: those of the approved run, whatever was played."""
    vectors, plan = sent(grid.replies), plan_run(public_spec(federation.home))
    (mechanism,) = plan.mechanisms
    if vectors:
        shown = next(m for m in next(iter(grid.nodes.values())).asked if "question" in m.content.config_records)
        sums = exact(decode(Question, shown.content).public_seed)  # at the points that sites were shown
        found = np.array([vectors[site] - sums[list(SITES).index(site)] for site in vectors])
        missed = found / mechanism.noise_stddev()
        # Three normal numbers at a site or more: all below .01 with probability 5e-7, and any above 7 below 1e-10.
        assert 0.01 < np.abs(missed).max() < 7.0
    for site in SITES:
        path = ledger_path(read_site(federation.site_file(site)))
        if site in vectors or path.exists():
            with ledger_of(federation, site) as ledger:
                assert ledger.verify().ok
                assert spent(ledger) == pytest.approx(2.0 if ledger.book().paid else 0.0, rel=2e-3)
                assert site not in vectors or ledger.book().paid == [plan.event]
    return vectors


TOLD = {
    "trusting": (trusting, SHIPPED),
    "hiding": (federation_of, LIES),
}


@pytest.mark.parametrize(("kind", "key"), [case for kind, (_, told) in TOLD.items() for case in first(told, kind)])
def test_sites_refuse_a_trusted_servers_ledger_of_another_run(kind: str, key: str, tmp_path) -> None:
    """The server plays other settings under approved files: its ledger binds them, and a site sees that it does."""
    made, told = TOLD[kind]
    federation = made(tmp_path)
    nodes = federation.nodes()
    grid = play(federation, nodes, lying_home(federation, key, told))
    assert not vectors_of(grid)
    assert not list(tmp_path.glob("*/kept/*/sent/*.npz"))
    assert {reply["error"] for reply in grid.answers} <= {"RefusedError", "ConfigurationError", "PolicyError"}
    if kind == "hiding":
        assert not answered(federation, grid)


@pytest.mark.parametrize("key", first(LIES))
def test_behind_a_forged_ledger_what_leaves_has_the_approved_noise_and_price(key: str, tmp_path) -> None:
    federation = federation_of(tmp_path)
    home = lying_home(federation, key, LIES)
    answered(federation, play(federation, federation.nodes(), home, forging(federation)))


@pytest.mark.parametrize("case", [*sorted(HARMLESS), "Question.run"])
def test_a_bent_question_is_refused_or_answered_as_approved(case: str, tmp_path) -> None:
    federation, bend = federation_of(tmp_path), partial(bend_question, Question, *TO_SITES[case])
    grid = play(federation, federation.nodes(), bend=bend)
    assert grid.answers
    assert bool(answered(federation, grid)) == (case in HARMLESS)


@pytest.mark.parametrize("algorithm", ["multi-task", *ALGORITHMS])
@pytest.mark.parametrize("released", [True, False])
def test_no_algorithm_is_asked_a_round_before_the_first(algorithm: str, released: bool, tmp_path) -> None:
    """Round -1 would be a list's last request."""
    federation = make(tmp_path, ALGORITHMS[algorithm]) if algorithm in ALGORITHMS else federation_of(tmp_path)
    federation.approve()
    run, seed = approved_run(federation.home, read_site(federation.site_file("north"))), 5
    if run.spec.seed is not None:
        seed = derive_seed(run.spec.seed, "public")
    with pytest.raises(RefusedError, match="round: found -1"):
        run.request(Broadcast(round=-1), public_seed=seed, released=released)
