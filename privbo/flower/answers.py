"""A site's half of a round: the question that Flower brings, answered by the site's resident or in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from accountant.ledger.reservation import Place
from privbo.flower.forks import house
from privbo.flower.messages import (
    Header,
    decode_question,
    encode_failure,
    encode_reply,
    vector_messages,
)
from privbo.flower.resident import Inquiry, ask
from privbo.flower.sealer import require_same_trust, sealer
from privbo.flower.settings import (
    Federation,
    LoadsRun,
    SiteRun,
    SiteSettings,
    read_federation,
    read_site,
    site_run,
    timeouts_of,
)
from privbo.flower.site import Question, SiteRecord
from privbo.flower.site_policy import admit, required_policy
from privbo.guardians.letters import encode_letter
from privbo.guardians.panel import unpacked
from privbo.plans.policy import Policy
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.interrupts import Stopped, watched_interrupts
from privbo.protocol.messages import IntArray
from privbo.protocol.settings import read_settings
from privbo.protocol.threads import limited_loaded_threads
from privbo.runs.asked import Asked, Desk
from privbo.runs.separate import Clients, clients_of
from privbo.runs.spec import Spec

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


def answered(asked: Inquiry, load: LoadsRun = site_run) -> RecordDict:
    """Answer a question from the site's own disk; ``load`` gives the site's run."""
    with watched_interrupts() as stopped:
        return _answered(asked, stopped, load)


def _nonce(asked: Inquiry) -> bytes:
    with suppress(RunError, KeyError, TypeError, ValueError):
        return decode_question(asked.content)[2]
    return b""


def _answered(asked: Inquiry, stopped: Stopped, load: LoadsRun) -> RecordDict:
    site, nonce, record = SiteSettings(name="", directory=""), b"", None
    try:
        header, question, nonce = decode_question(asked.content)
        site = _site(asked)
        record = SiteRecord.open(Path(site.directory), header.run)
        required_policy(site)
        run = load(asked.home, site)
        answered_before = record.latest() is not None
        admit(site, run.spec, run=header.run, settings=run.settings, answered=answered_before)
        clients, messages, receipt = _answer(run, site, record, header, question, stopped)
        return encode_reply(site.name, nonce, clients, messages, receipt)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and stopped():
            raise
        if record is not None:
            record.note_failure()
        return encode_failure(site.name, nonce, error, _last_seen(record))


def _last_seen(record: SiteRecord | None) -> Place | None:
    with suppress(RunError, KeyError, TypeError, ValueError, OSError):  # what failed may be this very file
        return None if record is None else record.receipts.last()
    return None


def _answer(
    run: SiteRun, site: SiteSettings, record: SiteRecord, header: Header, question: Question, stopped: Stopped
) -> tuple[IntArray, list[bytes], bytes]:
    spec, federation, problem = run.spec, run.federation, run.spec.problem
    if (problem.n_clients, spec.rounds) != (header.n_clients, header.rounds):
        raise ConfigurationError(
            f"the server's run has {header.n_clients} clients and {header.rounds} rounds, this site's settings "
            f"{problem.n_clients} and {spec.rounds}"
        )
    clients = np.array(federation.registry(problem.n_clients).clients[site.name], dtype=np.int64)
    require_same_trust(spec, site, federation, question)
    limit = None if spec.times is None else spec.times.of_one(len(clients))
    own = clients_of(
        spec.played,
        spec.setting(header.public_seed),
        clients=clients,
        evaluate=problem.evaluator(on_failure=record.keep_failure, stopped=stopped, client_seconds=limit),
        seed=record.seed(header.clients_seed),
        desk=Desk(folder=record.path, patience=_patience(federation, spec), threads=spec.threads),
    )
    record.keep_facts(clients, problem.search_space)
    with limited_loaded_threads(spec.threads):
        sent = _sent(run, record, header, question, own)
    _say_over(own, spec, question)
    return sent


def _sent(
    run: SiteRun, record: SiteRecord, header: Header, question: Question, own: Clients
) -> tuple[IntArray, list[bytes], bytes]:
    """Clients under whose numbers messages are sent, the messages, and the receipt, by who is trusted with what."""
    spec, round_, clients = run.spec, question.broadcast.round, own.clients
    if question.guarded is None:
        vectors, receipt = record.answer(question, own)
        return clients, vector_messages(round_, vectors), receipt
    made, receipt = record.sealed(question, own, sealer(spec, run.federation, header, question, clients))
    letters = unpacked(made, len(run.federation.guardians))
    spoken = np.array([letter.client for letter in letters], dtype=np.int64)
    return spoken, [encode_letter(round_, letter) for letter in letters], receipt


def _say_over(own: Clients, spec: Spec, question: Question) -> None:
    """Tell who evaluates trials that the last planned question was answered: no server says more to a site."""
    common = CHOSEN in question.broadcast.arrays
    if isinstance(own, Asked) and (common or (spec.final is None and question.broadcast.round >= spec.rounds - 1)):
        own.journal.finish()


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
        return SiteSettings(name=name, directory=str(folder), policy=_simulated_policy(asked.context.run_config))
    raise ConfigurationError("the node config names no site; start the SuperNode with --node-config 'site=\"PATH\"'")


def _simulated_policy(config: Mapping[str, object]) -> Policy | None:
    """The policy of sites that Flower simulates, from the app: the operator of a simulation owns all of its data."""
    if not {"policy-epsilon", "policy-delta"} <= config.keys():
        return None
    bound = {"epsilon": config["policy-epsilon"], "delta": config["policy-delta"]}
    return read_settings(Policy, bound | {"noise": ["secure", "exact", "simulation"], "no_privacy": True}, "policy")
