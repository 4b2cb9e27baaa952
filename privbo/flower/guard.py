"""A guardian's app: the same app that sites load, on a node that names a ``guardian.toml`` in place of a site's.

A guardian computes plan, noise and every round's request itself, from files that it has approved
(``privbo.flower.approval``). What a message says otherwise is refused.

DIR/sealing.key, DIR/signing.key    the guardian's private keys
DIR/_policy/ledger.sqlite           its ledger of all runs, under its policy's bound
DIR/RUN/ledger.sqlite               its ledger of the run, under the run's own bound
DIR/RUN/rounds/                     what it has received and stated
DIR/RUN/asked.npz                   what clients were shown in the latest round that came with shares
DIR/refused.jsonl, DIR/errors.log   what it refused, and why
"""

from __future__ import annotations

import traceback
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from accountant.events import Unit
from accountant.ledger import Budget, LedgerPolicy
from accountant.ledger.signing import sign
from privbo.flower.approval import PartyRun, approved_run, broadcast_arrays, broadcast_of, keep_refusal
from privbo.flower.messages import (
    MEETING,
    GuardianQuestion,
    decode_guardian_question,
    encode_refused,
    encode_said,
)
from privbo.flower.party_policy import admit, required_policy
from privbo.flower.settings import GuardianSettings, read_guardian, require_guardians, site_keys
from privbo.flower.site import require_run_name
from privbo.guardians.ciphertexts import Call
from privbo.guardians.guardian import Arrays, Guardian, StateStore
from privbo.guardians.keys import GuardianKeys, guardian_keys
from privbo.plans.plan import Plan
from privbo.protocol.errors import ConfigurationError, RefusedError, RunError
from privbo.protocol.files import load_arrays, save_arrays
from privbo.protocol.messages import Broadcast, Request
from privbo.runs.evidence import plan_name
from privbo.runs.guarded import ledger_of
from privbo.runs.manifest import noise_of


def guard(message: Message, context: Context, home: Path) -> Message:
    """A guardian's reply to one question: what was asked for, or why not."""
    asked, own = GuardianQuestion(kind="meet", nonce=b"", run=""), None
    try:
        asked = decode_guardian_question(message.content)
        own = _settings(context)
        content = _reply(asked, own, home)
    except Exception as error:
        if own is not None:
            _note(own, asked.run, error)
        content = encode_refused(asked.nonce, error)
    return Message(content, reply_to=message)


def _reply(asked: GuardianQuestion, own: GuardianSettings, home: Path) -> RecordDict:
    keys = guardian_keys(Path(own.directory))
    if asked.kind == "meet":
        hello = {"run": asked.run, "guardian": own.name, "nonce": asked.nonce.hex()}
        return encode_said(asked.nonce, statement=sign(keys.signing, MEETING, hello).to_dict())
    require_run_name(asked.run)
    required_policy(own)
    run, folder = approved_run(home, own), Path(own.directory) / asked.run
    if asked.kind == "receive":
        if asked.broadcast is None:
            raise RunError("the server sends shares without what clients were shown; use one version of privbo")
        call, request = _round(run, asked.run, asked.broadcast, asked.public_seed)
        statement = _guardian(run, own, keys, asked.run).receive(call, request, asked.encrypted_shares)
        save_arrays(folder / "asked.npz", _as_arrays(asked.broadcast, asked.public_seed))
        return encode_said(asked.nonce, statement=statement)
    kept = load_arrays(folder / "asked.npz") if (folder / "asked.npz").exists() else None
    if kept is None or int(kept["round"]) != asked.round:
        raise RunError(f"guardian {own.name} has received nothing for round {asked.round}; nothing is summed")
    call, request = _round(run, asked.run, broadcast_of(asked.round, kept), int(kept["public_seed"]))
    guardian = _guardian(run, own, keys, asked.run)
    signed = [*asked.signed, guardian.stated(call)]
    return encode_said(asked.nonce, answer=guardian.answer(call, request, signed))


def _round(run: PartyRun, name: str, broadcast: Broadcast, public_seed: int) -> tuple[Call, Request]:
    """A round that ends with a release, as this guardian computes it."""
    request = run.request(broadcast, public_seed=public_seed, released=True)
    if request is None:
        raise RefusedError("released", expected=False, found=True)
    return run.call(name, broadcast.round, request), request


def _as_arrays(broadcast: Broadcast, public_seed: int) -> Arrays:
    """What was asked, as it is kept between a guardian's two processes of a round."""
    return broadcast_arrays(broadcast) | {"round": np.array(broadcast.round), "public_seed": np.array(public_seed)}


def _guardian(run: PartyRun, own: GuardianSettings, keys: GuardianKeys, name: str) -> Guardian:
    """The guardian of a run, once its policy admits the run; its noise is the plan's as it computes it."""
    cards, declared, folder = (
        require_guardians(run.federation, run.spec.privacy),
        run.declared(name),
        Path(own.directory) / name,
    )
    if cards.get(own.name) != keys.card:
        raise RunError(
            f"federation.toml names other keys of guardian {own.name} than this one has; register its card: "
            f"sealing = '{keys.card.sealing}', signing = '{keys.card.signing}'"
        )
    store = StateStore(path=folder / "rounds")
    admit(run, name, answered=not store.is_empty())
    folder.mkdir(parents=True, exist_ok=True)
    sites = site_keys(run.federation, run.plan.n_clients)
    return Guardian(
        name=own.name,
        keys=keys,
        cards=cards,
        run=name,
        plan=plan_name(declared),
        mechanism=run.mechanism,
        store=store,
        ledger=ledger_of(folder / "ledger.sqlite", _ledger_policy(run.plan, name), declared, store),
        noise=noise_of(run.plan.noise_source, run.spec.seed or 0, f"noise of {own.name}"),
        site_of=lambda client: sites[client],
    )


def _ledger_policy(plan: Plan, population: str) -> LedgerPolicy:
    """The policy of a run's own ledger: it always has a bound, at the plan's delta."""
    cost = min(plan.epsilon().values())
    return LedgerPolicy(
        unit=Unit(plan.unit),
        adjacency=plan.adjacency,
        population=population,
        n_clients=plan.n_clients,
        budget=plan.budget or Budget(epsilon=cost * (1.0 + 1e-6), delta=plan.delta),
        disjoint=plan.unit == "reward",
    )


def _settings(context: Context) -> GuardianSettings:
    if "guardian" not in context.node_config:
        raise ConfigurationError("this node is no guardian")
    return read_guardian(Path(str(context.node_config["guardian"])))


def _note(own: GuardianSettings, run: str, error: BaseException) -> None:
    keep_refusal(own, run, error)
    with (Path(own.directory) / "errors.log").open("a") as file:
        file.write(traceback.format_exc() + "\n")
