"""A site's and a guardian's half of a round: what Flower brings is answered from their own disks.

Both are the same app; a node that names a ``guardian.toml`` in place of a ``site.toml`` is a guardian. Where a
SuperNode was started by ``privbo flower supernode`` a site's own process answers, else this one. Both compute plan,
noise and every round's request themselves, from files that they have approved (``privbo.flower.party``). What a message
says otherwise is refused. A guardian keeps:

DIR/sealing.key, DIR/signing.key    its private keys
DIR/_policy/                        its ledger of all runs, under its policy's bound, and which rounds it answered
DIR/RUN/ledger.sqlite               its ledger of the run, under the run's own bound
DIR/RUN/rounds/                     what it has received and stated
DIR/refused.jsonl, DIR/errors.log   what it refused, and why
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from accountant.errors import PrivacyError
from accountant.ledger import Budget, Ledger
from accountant.ledger.chain import Position
from accountant.ledger.signing import sign
from privbo.door.mechanism import PrivateSum
from privbo.door.payload import encode_answer
from privbo.door.shares import own_units
from privbo.door.sums import own_blocks
from privbo.flower.fork_server import fork_server
from privbo.flower.messages import (
    ACTION,
    GUARD,
    LONGEST,
    MEETING,
    READY,
    GuardianQuestion,
    GuardianReply,
    Question,
    ReadinessQuestion,
    Reply,
    decode,
    encode,
    error_class,
    failure,
    nonce_of,
)
from privbo.flower.party import (
    AppFiles,
    GuardianSettings,
    Party,
    PartyRun,
    SiteSettings,
    admit,
    approved_run,
    event_name,
    keep_answered,
    keep_refusal,
    read_settings_of,
    read_site,
)
from privbo.flower.registry import read_federation
from privbo.flower.site import SiteRecord, Wanted, as_they_are, keep_words, require_run_name
from privbo.guardians.ciphertexts import Call, GuardianKeys, encrypt_shares, guardian_keys, stored
from privbo.guardians.guardian import Guardian, StateStore
from privbo.plans.policy import Policy
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError, PolicyError, RefusedError, RunError
from privbo.protocol.files import private_folder
from privbo.protocol.messages import Arrays, FloatArray, Request
from privbo.protocol.processes import Stopped, limited_loaded_threads, watched_interrupts
from privbo.protocol.settings import JsonObject, read_settings
from privbo.runs.clients import WorkerSetup, clients_of
from privbo.runs.evidence import plan_name
from privbo.runs.guarded import ledger_of
from privbo.runs.manifest import SCORES, keep_clipped, noise_of
from privbo.runs.opening import policy_of
from privbo.runs.trials import PendingTrials

_FOR_ITS_ANSWER = 30.0  # seconds
_PUBLIC = (__name__, Guardian.__module__)  # modules whose refusals a server is told in words


def client_app(home: Path) -> ClientApp:
    """A site's app, which answers rounds with the site's own clients, or a guardian's, from its own disk.

    The node config's ``site`` names the site's ``site.toml``, ``guardian`` the guardian's ``guardian.toml``.
    """
    app = ClientApp()
    app.query(READY)(lambda message, context: ready(message, context, home))
    app.query(ACTION)(lambda message, context: respond(message, context, home))
    app.query(GUARD)(lambda message, context: guard(message, context, home))
    return app


def respond(message: Message, context: Context, home: Path) -> Message:
    """A site's reply to one question; if anything fails, the class of the error and nothing else.

    Where a SuperNode was started by ``privbo flower supernode`` the site's own process answers, else this one.
    """
    server, content = fork_server(), message.content
    try:
        found = answered(content, context, home) if server is None else server.ask(content, context, home)
    except RunError as error:  # the site's process is gone
        with suppress(PrivacyError):
            _keep_error(_site(context, home), "", error, context)
        found = encode(failure("", error), nonce_of(Question, content))
    return Message(found, reply_to=message)


def ready(message: Message, context: Context, home: Path) -> Message:
    """A site's reply before a run is made: its name, or the class of the error for which it would not answer.

    It is given here and not by the site's own process, which an objective of an earlier run may hold up or end.
    """
    return Message(answered(message.content, context, home, ReadinessQuestion), reply_to=message)


def answered(
    content: RecordDict, context: Context, home: Path, kind: type[Question | ReadinessQuestion] = Question
) -> RecordDict:
    """Answer a question of a kind from the site's own disk."""
    site, run_name, nonce, record = SiteSettings(name="", directory=""), "", nonce_of(kind, content), None
    with watched_interrupts() as stopped:
        try:
            question, site = decode(kind, content), _site(context, home)
            if isinstance(question, ReadinessQuestion):
                approved_run(home, site).require_ready(question.terms)
                return encode(Reply(site=site.name, clients=[], vectors=[]), nonce)
            require_run_name(run_name := question.run)
            record = SiteRecord(path=Path(site.directory) / run_name)
            run = approved_run(home, site)
            wanted = _wanted(run, record, question)
            admit(run, run_name, answered=record.answered())
            SiteRecord.open(Path(site.directory), run_name)
            reply = _answer(run, record, question, wanted, stopped)
            keep_answered(site, run_name, question.broadcast.round)
            return encode(reply, nonce)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and stopped():
                raise
            _keep_error(site, run_name, error, context, record)
            seen: Position | None = None
            with suppress(RunError, KeyError, TypeError, ValueError, OSError):  # what failed may be this very file
                seen = None if record is None else record.last_seen()
            return encode(failure(site.name, error, seen), nonce)


def _wanted(run: PartyRun, record: SiteRecord, question: Question) -> Wanted:
    """The round as this site computes it from approved files and the broadcast; what the message says else is refused.

    Raises:
        RefusedError: Naming what differs.
    """
    name, round_ = question.run, question.broadcast.round
    request = run.request(question.broadcast, public_seed=question.public_seed, released=question.released)
    event, trust, send = run.event(request, record.releases(but=round_)), run.spec.privacy.trust, as_they_are
    if request is not None and trust != "server":
        send = partial(_hidden, run, *run.call(name, round_, request), request)
    return Wanted(
        dim=0 if request is None else request.dim,
        event="" if event is None else event_name(event),
        require_ledger=partial(run.require_ledger, name, round_, event),
        send=send,
        is_hidden=trust != "server",
    )


def _hidden(run: PartyRun, call: Call, mechanism: PrivateSum, request: Request, vectors: FloatArray) -> Arrays:
    """The sum of a site's vectors under noise of its own, or encrypted for the guardians of the approved federation."""
    clients, own = run.clients(), run.spec.privacy.trust == "sites"
    label = f"{'noise' if own else 'coins'} of {clients.tolist()}"
    secret = noise_of(run.plan.noise_source, run.clients_seed or 0, label).stream(str(call.round))
    if own:
        return {"vectors": own_blocks(mechanism, request, vectors, clients, secret)}
    # The grid's step leaves room for the sum of all clients.
    together = own_units(mechanism, request, vectors, clients, secret).sum(axis=0, keepdims=True)
    cards, site = run.federation.guardians, run.federation.key_digests()[int(clients[0])]
    return stored(call.round, encrypt_shares(call, together, clients[:1].tolist(), cards=cards, site=site))


def _answer(run: PartyRun, record: SiteRecord, question: Question, wanted: Wanted, stopped: Stopped) -> Reply:
    spec, clients, round_ = run.own_spec, run.clients(), question.broadcast.round
    problem, places = spec.problem, Counter[int]()

    def on_clipped(client: int, clipped: int, scored: int) -> None:  # a round that is played again repeats the places
        keep_clipped(record.path / SCORES, client, clipped, scored, round=round_, place=places[client])
        places[client] += 1

    evaluate = spec.evaluator(
        len(clients),
        on_failure=lambda client, reason: record.note(f"client {client}: {reason}"),
        on_clipped=on_clipped,
        stopped=stopped,
    )
    asking = None
    if problem.is_asked:  # for values that are told it waits for what is left of the round but for its answer
        timeout = run.federation.on_grid(spec).round_timeout
        patience = max(0.5 * timeout, timeout - _FOR_ITS_ANSWER)
        asking = partial(PendingTrials, spec=spec, folder=record.path, patience=patience)
    setup = WorkerSetup(spec=spec, setting=spec.setting(question.public_seed), seed=record.seed(run.clients_seed))
    own = clients_of(setup, clients, evaluate, asking=asking)
    record.keep_facts(clients, problem.search_space)
    with limited_loaded_threads(spec.threads):
        made, receipt = record.answer(question, wanted, own)
    is_last = CHOSEN in question.broadcast.arrays or (spec.final is None and round_ >= spec.rounds - 1)
    if isinstance(own, PendingTrials) and is_last:
        own.journal.finish()  # the last planned question was answered: no server says more to a site
    numbers = clients.tolist()
    if "messages" in made:
        numbers, messages = made["clients"].tolist(), [message.tobytes() for message in made["messages"]]
    else:  # an absent client sends NaN, so that absence does not show in the size
        vectors = np.asarray(made["vectors"], dtype=np.float64)
        messages = [encode_answer(round_, vector) for vector in vectors] if wanted.dim else []
    return Reply(site=run.party.name, clients=numbers if messages else [], vectors=messages, receipt=receipt)


def _site(context: Context, home: Path) -> SiteSettings:
    """This node's settings: its own file, or, where Flower simulates nodes, a folder in the run's."""
    node, config = context.node_config, context.run_config
    if "site" in node:
        return read_site(Path(str(node["site"])))
    if "partition-id" not in node:
        raise ConfigurationError(
            "the node config names no site; start the SuperNode with --node-config 'site=\"PATH\"'"
        )
    name, policy = list(read_federation(home).sites)[int(node["partition-id"])], None
    folder = Path(str(config["directory"])) / "private" / "sites" / name
    if {"policy-epsilon", "policy-delta"} <= config.keys():  # from the app: its operator owns all simulated data
        bound = {"epsilon": config["policy-epsilon"], "delta": config["policy-delta"]}
        bound |= {"noise": ["secure", "exact", "simulation"], "no_privacy": True}
        policy = read_settings(Policy, bound, "policy")
    return SiteSettings(name=name, directory=str(folder), policy=policy, approved=(AppFiles.read(home).digests,))


def guard(message: Message, context: Context, home: Path) -> Message:
    """A guardian's reply to one question: what was asked for, or why not."""
    asked, nonce, own = GuardianQuestion(kind="meet", run=""), nonce_of(GuardianQuestion, message.content), None
    try:
        asked = decode(GuardianQuestion, message.content)
        own = _guardian_settings(context)
        reply = _reply(asked, nonce, own, home)
    except Exception as error:
        if own is not None:
            _keep_error(own, asked.run, error, context)
        # What guardians say of a round holds names, rounds and keys only; a policy's numbers and paths stay here.
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_public = type(error) is RunError and frame.f_globals["__name__"] in _PUBLIC
        reply = GuardianReply(refusal=error_class(error) + (f": {error}"[:LONGEST] if is_public else ""))
    return Message(encode(reply, nonce), reply_to=message)


def _keep_error(own: Party, run: str, error: BaseException, context: Context, record: SiteRecord | None = None) -> None:
    """Write down at a party why it did not answer, if that can be written: its reply goes either way."""
    if not own.directory:
        return
    words = traceback.format_exc()
    with suppress(OSError, RunError):
        if record is None and not context.node_config.keys() & {"site", "guardian"}:  # its folder is in the run's
            private_folder(Path(str(context.run_config["directory"])))
        if record is None or isinstance(error, PolicyError | RefusedError):
            keep_refusal(own, run, error)
    keep_words(Path(own.directory), words) if record is None else record.note(words)


def _reply(asked: GuardianQuestion, nonce: bytes, own: GuardianSettings, home: Path) -> GuardianReply:
    keys = guardian_keys(Path(own.directory))
    if asked.kind == "meet":
        if asked.terms is not None:
            _require_ready(asked.terms, own, keys, home)
        hello = {"run": asked.run, "guardian": own.name, "nonce": nonce.hex()}
        return GuardianReply(statement=sign(keys.signing, MEETING, hello))
    require_run_name(asked.run)
    run = approved_run(home, own)
    if asked.broadcast is None:
        raise RunError("the server asks without what clients were shown; use one version of privbo")
    request = run.request(asked.broadcast, public_seed=asked.public_seed, released=True)
    if request is None:
        raise RefusedError("released", expected=False, found=True)
    guardian = _guardian(run, own, keys, asked.run)
    call, _ = run.call(asked.run, asked.broadcast.round, request)
    if asked.kind == "answer":
        found = guardian.answer(call, request, [*(asked.signed or ()), guardian.stated(call)])
        keep_answered(own, asked.run, call.round)
        return GuardianReply(payload=found.payload, receipt=found.receipt)
    return GuardianReply(statement=guardian.receive(call, request, asked.encrypted_shares or ()))


def _guardian_settings(context: Context) -> GuardianSettings:
    if "guardian" not in context.node_config:
        raise ConfigurationError("this node is no guardian")
    return read_settings_of(GuardianSettings, Path(str(context.node_config["guardian"])))


def _require_ready(terms: JsonObject, own: GuardianSettings, keys: GuardianKeys, home: Path) -> None:
    run = approved_run(home, own)
    run.require_ready(terms)
    _require_card(run, own, keys)


def _require_card(run: PartyRun, own: GuardianSettings, keys: GuardianKeys) -> None:
    if run.federation.guardians.get(own.name) != keys.card:
        raise RunError(
            f"federation.toml names other keys of guardian {own.name} than this one has; register its card: "
            f"sealing = '{keys.card.sealing}', signing = '{keys.card.signing}'"
        )


def _guardian(run: PartyRun, own: GuardianSettings, keys: GuardianKeys, name: str) -> Guardian:
    """The guardian of a run, once its policy admits the run; its noise is the plan's as it computes it."""
    cards, sites, declared = run.federation.guardians, run.federation.key_digests(), run.declared(name)
    folder = Path(own.directory) / name
    _require_card(run, own, keys)
    store, book, answered = StateStore(path=folder / "rounds"), folder / "ledger.sqlite", set[int]()
    if book.exists():
        with Ledger.open(book) as ledger:
            answered = {int(row.release_id.removeprefix(f"{name}/")) for row in ledger.release_rows()}
    admit(run, name, answered=answered)
    folder.mkdir(parents=True, exist_ok=True)
    plan = run.plan
    policy = policy_of(plan, None, name)
    if policy.budget is None:  # always with a bound, at the plan's delta
        budget = Budget(epsilon=min(plan.epsilon().values()) * (1.0 + 1e-6), delta=plan.delta)
        policy = dataclasses.replace(policy, budget=budget)
    return Guardian(
        name=own.name,
        keys=keys,
        cards=cards,
        run=name,
        plan=plan_name(declared),
        mechanism=plan.mechanism,
        store=store,
        ledger=ledger_of(book, policy, declared, store),
        noise=noise_of(plan.noise_source, run.spec.seed or 0, f"noise of {own.name}"),
        site_of=lambda client: sites[client],
    )
