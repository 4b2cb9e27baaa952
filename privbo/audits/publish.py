"""Publishing something of an audit, paid for: a noisy histogram of the last round's norms.

Every client answers with the bin its vector's norm fell into, whether or not it had been
drawn into the round (who was drawn stays secret); the sum leaves through the door and is
charged to the run's ledger as a release of its own.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from privbo.door.adaptive import histogram_quantile, norm_histogram_request, one_hot_norms
from privbo.door.door import Door
from privbo.door.mechanism import mechanism_for
from privbo.door.noise import SecureNoise
from privbo.plans.spending import Spending, spending
from privbo.protocol.common import is_of_rounds
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import FloatArray
from privbo.runs.clients import answers_of, clients_of
from privbo.runs.manifest import derive_seed
from privbo.runs.record import Record, replay

_FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))


@dataclass(frozen=True, kw_only=True)
class PublishedNorms:
    """Public: histogram of the norms of one round's vectors, paid for by one charge.

    Attributes:
        round: The round whose vectors were counted.
        edges: Bin edges, multiples of that round's bound.
        counts: Noisy number of clients per bin, one more than edges.
        noise_stddev: Of every count.
        median: The edge nearest to the noisy median norm.
        sequence: Position of the charge in the ledger.
        head: The ledger's chain hash after it.
    """

    round: int
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    noise_stddev: float
    median: float
    sequence: int
    head: str


def price_of_norms(record: Record, *, noise_multiplier: float) -> Spending | None:
    """Price a publication of norms without looking at any: its cost, and the ledger's new total; None if it is paid.

    Raises:
        ConfigurationError: If the multiplier is not positive, or guardians held the vectors.
        BudgetExceeded: If the ledger can't pay.
        LedgerError: If its bound is for the run's plan alone.
    """
    _require_publishable(record, noise_multiplier)
    request = norm_histogram_request(np.array(_FACTORS), record.spec.problem.n_clients)
    event = mechanism_for(request, noise_multiplier=noise_multiplier).event()
    run = _run_of(record)
    last = max((release.round for release in record.releases), default=None)
    if record.ledger.book().find(f"{run}/{last}") is not None:
        return None
    return spending(record.ledger, record.plan.safe_delta, f"the norms of round {last}", charges={run: event})


def _require_publishable(record: Record, noise_multiplier: float) -> None:
    if not noise_multiplier > 0:
        raise ConfigurationError(f"noise_multiplier={noise_multiplier!r} must be > 0")
    if record.plan.privacy.trust == "guardians":
        raise ConfigurationError(
            "norms are published by a door that sees every vector, and in a run with trust='guardians' none does; "
            "run a "
            "small one with trust='server' on data that may be seen by its server"
        )


def _run_of(record: Record) -> str:
    return f"{record.run_id}-norms"


def publish_norms(record: Record, *, noise_multiplier: float) -> PublishedNorms:
    """Release a noisy histogram of the norms of the last round's vectors; charges the ledger once.

    Asking again with the same multiplier gives the same release, which is free.

    Raises:
        ConfigurationError: If the multiplier is not positive, or guardians held the vectors.
        BudgetExceeded: If the ledger can't pay; nothing was released.
        RunError: If the clients' state is not on this machine.
    """
    _require_publishable(record, noise_multiplier)
    n_clients = record.spec.problem.n_clients
    round_, bound, rows = _last_answers(record)
    edges = bound * np.array(_FACTORS)
    request = norm_histogram_request(edges, n_clients)
    door = Door(
        record.ledger,
        run=_run_of(record),
        noise=SecureNoise(),
        mechanism=lambda wanted: mechanism_for(wanted, noise_multiplier=noise_multiplier),
        n_clients=n_clients,
    )
    ticket = door.open(round_, request)
    release = ticket.release
    if release is None:
        release, _ = door.close(ticket, one_hot_norms(rows, edges))
    return PublishedNorms(
        round=round_,
        edges=tuple(edges.tolist()),
        counts=tuple(release.values[0].tolist()),
        noise_stddev=release.noise_stddev,
        median=histogram_quantile(release.values, edges, 0.5),
        sequence=release.sequence,
        head=release.head,
    )


def _last_answers(record: Record) -> tuple[int, float, FloatArray]:
    """PRIVATE: the last released round, its bound per vector, and every client's answer to it."""
    spec, home = record.spec, record.home
    if not home.all_states() or spec.control is not None:
        raise RunError(f"{home.path}: the clients' state is not here, or the run is a control; nothing to publish")
    asked = [ask for ask, release in replay(record) if release is not None and is_of_rounds(ask)]
    if not asked or asked[-1].request is None:
        raise RunError(f"{home.path}: nothing was released yet, so there are no norms to publish")
    last, request = asked[-1].broadcast, asked[-1].request
    seed = derive_seed(home.seed, "clients")
    setting = spec.setting(record.manifest.public_seed)
    nobody = dataclasses.replace(spec.problem, objective=lambda _client, _params: math.nan, batch_objective=None)
    answers = []
    for group in home.groups_of(setting.n_clients):
        clients = clients_of(
            spec.algorithm,
            setting,
            clients=np.arange(*group),
            evaluate=nobody.evaluator(_no_evaluation),
            seed=seed,
            apart=spec.problem.is_asked,
        )
        clients.restore(home.states(group[0]).load() or {})
        answers.append(answers_of(clients, last, request.dim))
    return last.round, request.clipping_norm / np.sqrt(request.n_blocks), np.concatenate(answers)


def _no_evaluation() -> None:
    raise RunError("the last round was not answered before; resume the run first")
