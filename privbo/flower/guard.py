"""A guardian's app: the same app that sites load, on a node that names a ``guardian.toml`` in place of a site's.

DIR/sealing.key, DIR/signing.key    the guardian's private keys
DIR/RUN/ledger.sqlite               its own ledger of the run (DIR/POPULATION.sqlite where runs share one)
DIR/ledger.sqlite                   its own ledger of all runs, where it has a bound of its own
DIR/RUN/rounds/                     what it has received and stated
DIR/RUN/asked.npz                   the latest question that came with shares, and the plan it came under
DIR/errors.log                      why it refused
"""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, RecordDict

from accountant.events import Unit, compose
from accountant.ledger import Budget, LedgerPolicy
from accountant.ledger.reservation import Declaration
from accountant.ledger.signing import sign
from privbo.flower.guard_messages import MEETING, Terms, Wanted, decode_wanted, encode_refused, encode_said
from privbo.flower.settings import (
    GuardianSettings,
    public_spec,
    read_federation,
    read_guardian,
    require_guardians,
    site_keys,
)
from privbo.guardians.guardian import Guardian
from privbo.guardians.keys import GuardianKeys, guardian_keys
from privbo.guardians.shelf import Arrays, FolderShelf
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import load_arrays, save_arrays
from privbo.protocol.messages import Request
from privbo.runs.guarded import ledger_of, plan_name
from privbo.runs.seeds import noise_of
from privbo.runs.spec import Spec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


def guard(message: Message, context: Context, home: Path) -> Message:
    """A guardian's reply to one question: what was asked for, or why not."""
    nonce, own = b"", None
    try:
        wanted = decode_wanted(message.content)
        nonce = wanted.nonce
        own = _settings(context)
        content = _reply(wanted, own, home)
    except Exception as error:
        if own is not None:
            _note(Path(own.directory))
        content = encode_refused(nonce, error)
    return Message(content, reply_to=message)


def _reply(wanted: Wanted, own: GuardianSettings, home: Path) -> RecordDict:
    keys = guardian_keys(Path(own.directory))
    if wanted.kind == "meet":
        hello = {"run": wanted.run, "guardian": own.name, "nonce": wanted.nonce.hex()}
        return encode_said(wanted.nonce, statement=sign(keys.signing, MEETING, hello).to_dict())
    if wanted.call is None or not _NAME.fullmatch(wanted.run):
        raise RunError("the server names no round; use one version of privbo")
    kept = Path(own.directory) / wanted.run / "asked.npz"
    if wanted.kind == "receive":
        if wanted.terms is None or wanted.request is None or wanted.terms.declared.run != wanted.run:
            raise RunError("the server sends shares without a question of this run; use one version of privbo")
        guardian = _guardian(wanted.terms, own, keys, home)
        statement = guardian.receive(wanted.call, wanted.request, wanted.envelopes)
        save_arrays(kept, _as_arrays(wanted.terms, wanted.request))
        return encode_said(wanted.nonce, statement=statement)
    if not kept.exists():
        raise RunError(f"guardian {own.name} has received nothing for round {wanted.call.round}; nothing is summed")
    terms, request = _from_arrays(load_arrays(kept))
    guardian = _guardian(terms, own, keys, home)
    signed = [*wanted.signed, guardian.stated(wanted.call)]
    return encode_said(wanted.nonce, answer=guardian.answer(wanted.call, request, signed, wanted.plan_position))


def _as_arrays(terms: Terms, request: Request) -> Arrays:
    """A question as it is kept between a guardian's two processes of a round."""
    bound = np.nan if request.reward_bound is None else request.reward_bound
    declared = json.dumps(terms.declared.to_dict()).encode()
    return {
        "dim": np.array(request.dim),
        "numbers": np.array([request.clipping_norm, request.noise_scale, bound, terms.noise_multiplier]),
        "weights": np.asarray(request.weights),
        "declared": np.frombuffer(declared, dtype=np.uint8),
    }


def _from_arrays(kept: Arrays) -> tuple[Terms, Request]:
    clipping_norm, noise_scale, bound, noise_multiplier = kept["numbers"].tolist()
    request = Request(
        dim=int(kept["dim"]),
        clipping_norm=clipping_norm,
        noise_scale=noise_scale,
        reward_bound=None if np.isnan(bound) else bound,
        weights=np.asarray(kept["weights"], dtype=np.float64),
    )
    declared = Declaration.from_dict(json.loads(kept["declared"].tobytes()))
    return Terms(declared=declared, noise_multiplier=noise_multiplier), request


def _guardian(terms: Terms, own: GuardianSettings, keys: GuardianKeys, home: Path) -> Guardian:
    """The guardian of a run, by its own reading of the run's files and its own bound."""
    spec, federation, declared = public_spec(home), read_federation(home), terms.declared
    privacy = spec.privacy
    if not isinstance(privacy, Privacy) or not _NAME.fullmatch(declared.run):
        raise RunError("this run has no guardians, or no plain name")
    cards = require_guardians(federation, privacy)
    if cards.get(own.name) != keys.card:
        raise RunError(
            f"federation.toml names other keys of guardian {own.name} than this one has; register its card: "
            f"sealing = '{keys.card.sealing}', signing = '{keys.card.signing}'"
        )
    if (declared.settings, declared.noise_source) != (spec.digest(), privacy.noise_source):
        raise RunError("the declared plan is one of other settings than run.toml has here; nothing is guarded")
    folder = Path(own.directory) / declared.run
    folder.mkdir(parents=True, exist_ok=True)
    path = _ledger_path(spec, own, folder)
    sites = site_keys(federation, spec.problem.n_clients)
    return Guardian(
        name=own.name,
        keys=keys,
        cards=cards,
        run=declared.run,
        plan=plan_name(declared),
        mechanism=lambda request: privacy.mechanism(request, terms.noise_multiplier),
        shelf=FolderShelf(path=folder / "rounds"),
        ledger=ledger_of(path, _policy(spec, own, declared), declared, FolderShelf(path=folder / "rounds")),
        noise=noise_of(privacy.noise_source, spec.seed or 0, f"noise of {own.name}"),
        site_of=lambda client: sites[client],
    )


def _ledger_path(spec: Spec, own: GuardianSettings, folder: Path) -> Path:
    """Where the guardian has a bound of its own, one ledger serves all runs: a server may begin as many as it likes."""
    if own.epsilon is not None:
        return folder.parent / "ledger.sqlite"
    return folder / "ledger.sqlite" if spec.ledger is None else folder.parent / f"{spec.ledger.population}.sqlite"


def _policy(spec: Spec, own: GuardianSettings, declared: Declaration) -> LedgerPolicy:
    """The ledger's policy: the guardian's own bound if it names one, else the run's."""
    privacy, n_clients, shared = spec.privacy, spec.problem.n_clients, spec.ledger
    asked = privacy.budget if privacy.epsilon is None else privacy.epsilon
    population = declared.run if shared is None else shared.population
    budget: Budget | None = None
    if own.epsilon is not None and own.delta is not None:
        population, budget = "everybody", Budget(epsilon=own.epsilon, delta=own.delta, rule="gaussian")
    elif shared is not None:
        budget = shared.budget(compose(declared.events), n_clients=n_clients, adjacency=privacy.adjacency)
    elif asked is not None:
        budget = Budget(epsilon=asked, delta=declared.delta)
    return LedgerPolicy(
        unit=Unit(privacy.unit),
        adjacency=privacy.adjacency,
        population=population,
        n_clients=n_clients,
        budget=budget,
        disjoint=privacy.unit == "reward",
    )


def _settings(context: Context) -> GuardianSettings:
    if "guardian" not in context.node_config:
        raise ConfigurationError("this node is no guardian")
    return read_guardian(Path(str(context.node_config["guardian"])))


def _note(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "errors.log").open("a") as file:
        file.write(traceback.format_exc() + "\n")
