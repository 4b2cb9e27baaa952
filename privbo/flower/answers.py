"""A site's half of a round: the question that Flower brings, answered by the site's resident or in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from accountant.ledger.chain import Position, Row
from privbo.door.mechanism import PrivateSum
from privbo.door.shares import own_units
from privbo.flower.approval import AppFiles, LoadsRun, PartyRun, approved_run, event_name, keep_refusal
from privbo.flower.forks import house
from privbo.flower.messages import (
    Header,
    decode_question,
    encode_failure,
    encode_reply,
    vector_messages,
)
from privbo.flower.party_policy import admit, required_policy
from privbo.flower.resident import Inquiry, ask
from privbo.flower.settings import (
    Federation,
    SiteSettings,
    read_federation,
    read_site,
    require_guardians,
    site_keys,
    timeouts_of,
)
from privbo.flower.site import Arrays, Question, SiteRecord, Wanted
from privbo.guardians.ciphertexts import encode_ciphertext, encrypt_shares
from privbo.guardians.committee import packed, unpacked
from privbo.plans.policy import Policy
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError, PolicyError, RefusedError, RunError
from privbo.protocol.messages import FloatArray, IntArray, Request
from privbo.protocol.processes import Stopped, limited_loaded_threads, watched_interrupts
from privbo.protocol.settings import read_settings
from privbo.runs.clients import clients_of
from privbo.runs.manifest import noise_of
from privbo.runs.spec import Spec
from privbo.runs.trials import PendingTrials, pending_trials

_FOR_ITS_ANSWER = 30.0  # seconds


def respond(message: Message, context: Context, home: Path) -> Message:
    """A site's reply to one question; if anything fails, the class of the error and nothing else.

    Where a SuperNode was started by ``privbo flower supernode`` the site's resident answers, else this process.
    """
    asked = Inquiry(content=message.content, context=context, home=home)
    shared = house()
    if shared is None:
        return Message(answered(asked), reply_to=message)
    try:
        content = ask(shared, asked)
    except RunError as error:
        content = encode_failure("", _nonce(asked), error, None)
    return Message(content, reply_to=message)


def answered(asked: Inquiry, load: LoadsRun = approved_run) -> RecordDict:
    """Answer a question from the site's own disk; ``load`` gives the site's run."""
    with watched_interrupts() as stopped:
        return _answered(asked, stopped, load)


def _nonce(asked: Inquiry) -> bytes:
    with suppress(RunError, KeyError, TypeError, ValueError):
        return decode_question(asked.content)[2]
    return b""


def _answered(asked: Inquiry, stopped: Stopped, load: LoadsRun) -> RecordDict:
    site, header, nonce, record = SiteSettings(name="", directory=""), Header(run="", public_seed=0), b"", None
    try:
        header, question, nonce = decode_question(asked.content)
        site = _site(asked)
        record = SiteRecord.open(Path(site.directory), header.run)
        required_policy(site)
        run = load(asked.home, site)
        request, wanted = _wanted(run, record, question)
        admit(run, header.run, answered=record.latest() is not None)
        clients, messages, receipt = _answer(run, record, question, request, wanted, stopped)
        return encode_reply(site.name, nonce, clients, messages, receipt)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and stopped():
            raise
        if isinstance(error, PolicyError | RefusedError):
            keep_refusal(site, header.run, error)
        if record is not None:
            record.note_failure()
        return encode_failure(site.name, nonce, error, _last_seen(record))


def _last_seen(record: SiteRecord | None) -> Position | None:
    with suppress(RunError, KeyError, TypeError, ValueError, OSError):  # what failed may be this very file
        return None if record is None else record.receipts.last()
    return None


def _wanted(run: PartyRun, record: SiteRecord, question: Question) -> tuple[Request | None, Wanted]:
    """The round as this site computes it from approved files and the broadcast; what the message says else is refused.

    Raises:
        RefusedError: Naming what differs.
    """
    name, round_ = question.run, question.broadcast.round
    request = run.request(question.broadcast, public_seed=question.public_seed, released=question.released)
    event = run.event(request, record.releases(but=round_))

    def require_ledger(plan: str, rows: list[Row]) -> None:
        run.require_declared(name, plan, rows)
        run.require_charged(f"{name}/{round_}", event, rows)

    dim = 0 if request is None else request.dim
    return request, Wanted(dim=dim, event="" if event is None else event_name(event), require_ledger=require_ledger)


def _answer(
    run: PartyRun,
    record: SiteRecord,
    question: Question,
    request: Request | None,
    wanted: Wanted,
    stopped: Stopped,
) -> tuple[IntArray, list[bytes], bytes]:
    spec, federation = run.own_spec, run.federation
    problem, round_ = spec.problem, question.broadcast.round
    clients = np.array(federation.registry(problem.n_clients).clients[run.party.name], dtype=np.int64)
    is_sealed = request is not None and spec.privacy.trust == "guardians"
    if request is not None and is_sealed:
        wanted = dataclasses.replace(wanted, send=sealer(run, question.run, round_, request, clients))
    limit = None if spec.times is None else spec.times.of_one(len(clients))
    evaluate = problem.evaluator(on_failure=record.keep_failure, stopped=stopped, client_seconds=limit)
    waiting = pending_trials(spec, evaluate, record.path, _patience(federation, spec))
    own = clients_of(
        spec.played,
        spec.setting(question.public_seed),
        clients=clients,
        evaluate=evaluate,
        seed=record.seed(run.clients_seed),
        waiting=waiting,
    )
    record.keep_facts(clients, problem.search_space)
    with limited_loaded_threads(spec.threads):
        made, receipt = record.answer(question, wanted, own)
    if waiting is not None:
        _say_over(waiting, spec, question)
    if not is_sealed:
        return clients, vector_messages(round_, np.asarray(made["vectors"], dtype=np.float64)), receipt
    ciphertexts = unpacked(made, len(federation.guardians))
    spoken = np.array([ciphertext.client for ciphertext in ciphertexts], dtype=np.int64)
    return spoken, [encode_ciphertext(round_, ciphertext) for ciphertext in ciphertexts], receipt


def _say_over(waiting: PendingTrials, spec: Spec, question: Question) -> None:
    """Tell who evaluates trials that the last planned question was answered: no server says more to a site."""
    common = CHOSEN in question.broadcast.arrays
    if common or (spec.final is None and question.broadcast.round >= spec.rounds - 1):
        waiting.finish()


def _patience(federation: Federation, spec: Spec) -> float:
    """Seconds for which a site waits for values that are told: what is left of the round is for its answer."""
    whole = timeouts_of(federation, spec).round_timeout
    return max(0.5 * whole, whole - _FOR_ITS_ANSWER)


def _site(asked: Inquiry) -> SiteSettings:
    """This node's settings: its own file, or, where Flower simulates nodes, a folder beside the run."""
    config = asked.context.node_config
    if "site" in config:
        return read_site(Path(str(config["site"])))
    if "partition-id" in config:
        name = list(read_federation(asked.home).sites)[int(config["partition-id"])]
        folder = Path(str(asked.context.run_config["directory"])) / "private" / "sites" / name
        approved = (AppFiles.read(asked.home).digests,)  # the operator of a simulation owns all of its data
        policy = _simulated_policy(asked.context.run_config)
        return SiteSettings(name=name, directory=str(folder), policy=policy, approved=approved)
    raise ConfigurationError("the node config names no site; start the SuperNode with --node-config 'site=\"PATH\"'")


def _simulated_policy(config: Mapping[str, object]) -> Policy | None:
    """The policy of sites that Flower simulates, from the app: the operator of a simulation owns all of its data."""
    if not {"policy-epsilon", "policy-delta"} <= config.keys():
        return None
    bound = {"epsilon": config["policy-epsilon"], "delta": config["policy-delta"]}
    return read_settings(Policy, bound | {"noise": ["secure", "exact", "simulation"], "no_privacy": True}, "policy")


def sealer(
    run: PartyRun, name: str, round_: int, request: Request, clients: IntArray
) -> Callable[[FloatArray], Arrays]:
    """Give what turns a site's vectors into a ciphertext sealed to the guardians of the approved federation.

    Args:
        run: As the site computes it.
        name: The run's name.
        round_: Index of the round.
        request: What the round asks for.
        clients: Numbers of the site's clients, ``(n,)``.

    Raises:
        RunError: If the run has no guardians.
        ConfigurationError: If the federation names another number of guardians.
    """
    cards, mechanism = require_guardians(run.federation, run.spec.privacy), run.mechanism(request)
    if not isinstance(mechanism, PrivateSum) or not cards:
        raise RunError("this run has no guardians to seal to")
    private, call = mechanism, run.call(name, round_, request)
    coins = noise_of(run.plan.noise_source, run.clients_seed or 0, f"coins of {clients.tolist()}")
    site = site_keys(run.federation, run.plan.n_clients)[int(clients[0])]

    def seal(vectors: FloatArray) -> Arrays:
        units = own_units(private, request, vectors, clients, coins.stream(str(round_)))
        together = units.sum(axis=0, keepdims=True)  # the grid's step leaves room for the sum of all clients
        return packed(encrypt_shares(call, together, clients[:1].tolist(), cards=cards, site=site))

    return seal
