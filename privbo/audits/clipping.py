"""PRIVATE: effect of clipping (norms, bias and noise per round), from a run's private folder, and what to change.

Everything here but ``publish_norms`` is computed from clients' raw vectors and covered by no
epsilon. Using it to set the next run's bound is a choice made from private data.

Advice on the clipping norm follows from what the algorithm does with the sums. One that
maximises the released function, or fits its scale, uses the sums' direction alone: what counts
is how well the noisy sum agrees with the sum as it was meant (their cosine), and where every
vector is clipped a smaller bound shortens signal and noise alike. One that compares sums with
confidence radii uses their magnitude: what counts is the error, bias and noise combined,
relative to the sum. Both are estimates of what a release is good for, not of the score that
clients reach in the end. Each effect comes with its standard error over the run's rounds.

``publish_norms`` releases a noisy histogram of the last round's norms, under a charge. Every client
answers with the bin its vector's norm fell into, whether or not it had been drawn into the
round (who was drawn stays secret); the sum leaves through the door and is charged to the run's
ledger as a release of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from accountant.events import Event
from privbo.door.adaptive import histogram_quantile, norm_histogram_request, one_hot_norms
from privbo.door.clipping import BOUND_FACTORS
from privbo.door.door import Door
from privbo.door.mechanism import mechanism_for
from privbo.door.noise import SecureNoise
from privbo.plans.cost import Spending, spending
from privbo.protocol.common import is_of_rounds
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_lines
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import JsonObject, fields_of
from privbo.protocol.table import in_two_lines
from privbo.runs.clients import answers_of, clients_of
from privbo.runs.manifest import clipped_shares
from privbo.runs.opening import setup_of
from privbo.runs.record import Record, replay
from privbo.runs.sources import algorithm_table
from privbo.runs.states import States

Use = Literal["direction", "magnitude"]
# The Thompson family maximises the released function or fits its scale.
_DIRECTION = {"dp-fts-de", "shared-prior", "scout"}
LEAST = 0.01  # smaller effects are nothing to gain, however sure


@dataclass(frozen=True, kw_only=True)
class Advice:
    """PRIVATE: another clipping norm, or none.

    Attributes:
        use: Part of the sums that the algorithm uses.
        factor: On the run's clipping norm, the best of those tried; 1.0 where there is nothing to gain.
        effect: Gain by that factor, mean over rounds: in cosine (direction), or in the error's share of the sum.
        standard_error: Of that mean; None for a single round.
        rounds: Number of rounds.
        now: The same quantity with the run's own clipping norm, mean over rounds.
        equal: The smallest and the largest factor around 1 that would have given the same, to within ``LEAST``.
        at_edge: Whether the best factor is the smallest or largest that was tried, so that the best may lie beyond.
    """

    use: Use
    factor: float
    effect: float
    standard_error: float | None
    rounds: int
    now: float
    equal: tuple[float, float]
    at_edge: bool

    @property
    def answer(self) -> Literal["nothing to gain", "smaller", "larger"]:
        """The advice in a word."""
        if self.factor == 1.0:
            return "nothing to gain"
        return "smaller" if self.factor < 1.0 else "larger"

    def text(self, clipping_norm: float) -> str:
        """Say the advice in a sentence or two."""
        what = {
            "direction": "the release's cosine similarity to the unclipped sum",
            "magnitude": "the release's error as a share of the sum",
        }[self.use]
        low, high = (factor * clipping_norm for factor in self.equal)
        if self.answer == "nothing to gain":
            span = f", and any from {low:.3g} to {high:.3g} the same" if high > low else ""
            kept = f"keep S = {clipping_norm:.3g}: no other that was tried would have given more{span}"
            return f"{kept}; {what} was {self.now:.2g}"
        error = "one round says nothing about noise" if self.standard_error is None else f"± {self.standard_error:.1g}"
        change = f"{'raised' if self.use == 'direction' else 'lowered'} {what} by {self.effect:.2g} ({error})"
        edge = "; that is the edge of what was tried, the best may lie beyond" if self.at_edge else ""
        return (
            f"S = {self.factor * clipping_norm:.3g} in place of {clipping_norm:.3g} would have {change}, from "
            f"{self.now:.2g}, over {self.rounds} rounds{edge}"
        )


def advise(use: Use, rounds: Sequence[Mapping[float, float]]) -> Advice:
    """Choose a factor on the clipping norm.

    It is advice and no test: of few rounds and many factors one may be two standard errors ahead by chance.

    Args:
        use: Part of the sums that the algorithm uses.
        rounds: For every round, by factor, what is to be large (agreement, or the error's share times -1); every
            round has the same factors, 1.0 among them.
    """
    factors = sorted(rounds[0])
    table = np.array([[found[factor] for factor in factors] for found in rounds])
    here = factors.index(1.0)
    gains = table - table[:, [here]]
    mean = gains.mean(axis=0)
    as_good = [k for k, gain in enumerate(mean) if gain >= mean.max() - LEAST]
    best = min(as_good, key=lambda k: abs(k - here))  # the smallest change that brings as much
    error = float(gains[:, best].std(ddof=1) / math.sqrt(len(rounds))) if len(rounds) > 1 else None
    sure = error is not None and mean[best] > 2.0 * error
    worth = bool(mean[best] > LEAST and sure)
    return Advice(
        use=use,
        factor=factors[best] if worth else 1.0,
        effect=float(mean[best]) if worth else 0.0,
        standard_error=error,
        rounds=len(rounds),
        now=abs(float(table[:, here].mean())),
        equal=_equal(factors, mean, here),
        at_edge=worth and best in (0, len(factors) - 1),
    )


def _equal(factors: Sequence[float], gains: np.ndarray, here: int) -> tuple[float, float]:
    """Ends of the stretch around 1 in which no factor changes anything that matters."""
    low = high = here
    while low > 0 and abs(gains[low - 1]) <= LEAST:
        low -= 1
    while high < len(factors) - 1 and abs(gains[high + 1]) <= LEAST:
        high += 1
    return factors[low], factors[high]


def agreement(*, signal: float, kept: float, bias: float, noise: float) -> float:
    """Give the expected cosine between the unclipped sum and its release.

    Args:
        signal: Norm of the unclipped sum.
        kept: Norm of the clipped sum.
        bias: Norm of their difference.
        noise: Typical norm of the noise: the root of its mean square.

    Example:
        >>> agreement(signal=2.0, kept=1.0, bias=1.0, noise=0.0)  # half as long, the same direction
        1.0
        >>> round(agreement(signal=2.0, kept=1.0, bias=1.0, noise=1.0), 3)
        0.707
    """
    if signal == 0 or kept == 0:
        return 0.0
    inner = (kept**2 + signal**2 - bias**2) / 2
    return float(inner / (signal * math.hypot(kept, noise)))


NOTE = "private diagnostics, not covered by epsilon"


@dataclass(frozen=True, kw_only=True)
class ClippedRound:
    """PRIVATE: one round. All norms but the quantiles are of released sums, in one unit.

    Attributes:
        round: Zero-based.
        bound: Largest L2 norm of one client's vector after clipping.
        clipped_share: Share of contributing participants whose vector was shortened.
        norm_quantiles: Of the contributing vectors, by level; empty if there were none.
        signal: Norm of the sums as they were meant.
        bias: Norm of what clipping took from them.
        noise: Typical norm of the added noise: the root of its mean square.
        signal_by_region: ``signal`` of every block.
        bias_by_region: ``bias`` of every block.
        noise_by_region: ``noise`` of one block.
        error_at: sqrt(bias^2 + noise^2) as it would have been with the bound multiplied by each factor.
        agreement_at: Expected cosine between the release and the unclipped sum, for the same factors.
    """

    round: int
    bound: float
    clipped_share: float
    norm_quantiles: Mapping[str, float]
    signal: float
    bias: float
    noise: float
    signal_by_region: tuple[float, ...]
    bias_by_region: tuple[float, ...]
    noise_by_region: float
    error_at: Mapping[str, float]
    agreement_at: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ClippingAudit:
    """PRIVATE: effect of clipping on a run's vectors.

    Attributes:
        name: The run's.
        rounds: Rounds with a release, in order; at least one.
        clipping_norm: S of the last round (the bound times the square root of the blocks).
        advice: Another S, or none, from what the algorithm does with the sums.
        warnings: Patterns that matter, in words.
        note: What all of this is.
        score_shares: Of a run in one process that hides records: by site, the share of its scores that were
            clipped to ``score_range``, over all of its evaluations. Over Flower ``privbo audit`` on a site's own
            folder shows them.
    """

    name: str
    rounds: tuple[ClippedRound, ...]
    clipping_norm: float
    advice: Advice
    warnings: tuple[str, ...]
    note: str = NOTE
    score_shares: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return in_two_lines("ClippingAudit", self.name, f"{len(self.rounds)} rounds, {self.note}", self.verdict)

    @property
    def best_clipping_norm(self) -> float:
        """S that is advised; the run's own where there is nothing to gain."""
        return self.advice.factor * self.clipping_norm

    @property
    def verdict(self) -> str:
        """The advice in one sentence."""
        if self.score_shares:
            return "Scores of records are clipped to score_range; there is no S to set."
        text = self.advice.text(self.clipping_norm)
        return f"{text[0].upper()}{text[1:]}."

    def by_factor(self) -> dict[float, float]:
        """Average over rounds, by factor on S, of what the advice is made from: agreement, or bias and noise."""
        at = [r.agreement_at if self.advice.use == "direction" else r.error_at for r in self.rounds]
        return {float(factor): float(np.mean([found[factor] for found in at])) for factor in at[0]}

    def to_dict(self) -> JsonObject:
        """Give the audit as JSON-able data."""
        return fields_of(self) | {"best_clipping_norm": self.best_clipping_norm}


def audit(record: Record) -> ClippingAudit:
    """PRIVATE: measure what clipping did to a run's vectors.

    Raises:
        RunError: If nothing was released, the run is in memory, or its private folder is not here.

    Example:
        >>> import tempfile, privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=lambda clients, x: x[:, 0], n_clients=5)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> with tempfile.TemporaryDirectory() as home:
        ...     made = pb.run(
        ...         problem, pb.DPFTSDE(clipping_norm=2.0), privacy=privacy, rounds=1, seed=1, directory=f"{home}/run"
        ...     )
        ...     found = audit(made)
        >>> found.rounds[0].bound, found.rounds[0].clipped_share <= 1.0
        (1.0, True)
    """
    home, is_client = record.home, record.plan.unit == "client"
    lines = {row["round"]: row for row in read_lines(home.clipping_path)}
    rounds = tuple(
        _round(lines[r.round], noise_stddev=r.noise_stddev, shape=r.values.shape, is_client=is_client)
        for r in record.releases
        if r.round in lines and lines[r.round]["bound"] is not None
    )
    if all(f"{record.run_id}/{release.round}" == record.vote for release in record.releases):
        said = "a vote alone" if record.releases else "nothing"
        raise RunError(f"{home.path}: {said} was released, so nothing was clipped; there is nothing to audit")
    if not rounds:
        elsewhere = {
            "guardians": "this run's vectors were shared among guardians, so no party knows which were clipped",
            "sites": "each site alone knows what was clipped of its records' scores: privbo audit and the directory of "
            "its site.toml, at the site",
        }
        here = f"{home.private} holds no clip statistics; audit the run where its clients answered"
        raise RunError(elsewhere.get(record.plan.privacy.trust, here))
    shares = clipped_shares(home.scores_path)
    last, kind = rounds[-1], algorithm_table(record.spec.algorithm)["type"]
    use: Use = "direction" if kind in _DIRECTION else "magnitude"
    whole = max(float(np.mean([r.signal for r in rounds])), 1e-300)
    at = [(r.agreement_at, 1.0) if use == "direction" else (r.error_at, -whole) for r in rounds]
    tried = [{float(factor): value / unit for factor, value in found.items()} for found, unit in at]
    return ClippingAudit(
        name=record.spec.name,
        rounds=rounds,
        clipping_norm=last.bound * math.sqrt(len(last.bias_by_region)),
        advice=advise(use, tried),
        warnings=(
            *_warnings(rounds, is_client=is_client),
            *of_scores(shares, f"score_range={record.spec.problem.score_range}"),
        ),
        score_shares=shares,
    )


def of_scores(shares: Mapping[int, float], bounds: str) -> Iterator[str]:
    """PRIVATE: say what a site should know of whose records' scores much was clipped, one by one, before any sum.

    Args:
        shares: Of the scores that were clipped, by client.
        bounds: What they were clipped to, in words.
    """
    for client, share in shares.items():
        if share >= LEAST:
            yield (
                f"client {client}: {share:.0%} of its records' scores were clipped to {bounds}; normalise them, or "
                "declare a wider range, which means more noise"
            )


def _round(line: Mapping[str, Any], *, noise_stddev: float, shape: tuple[int, ...], is_client: bool) -> ClippedRound:
    n_blocks, dim = shape
    noise, signal = noise_stddev * math.sqrt(n_blocks * dim), math.hypot(*line["signal_by_block"])
    # Noise is proportional to the bound where it hides a client; else it is scaled to what one unit moves.
    tried = [
        (f"{factor:.4g}", factor * noise if is_client else noise, bias, kept)
        for factor, bias, kept in zip(line["bound_factors"], line["bias_at"], line["kept_at"], strict=True)
    ]
    return ClippedRound(
        round=line["round"],
        bound=line["bound"],
        clipped_share=line["clipped_share"],
        norm_quantiles={f"{level:g}": q for level, q in zip(line["norm_levels"], line["norm_quantiles"], strict=False)},
        signal=signal,
        bias=line["bias"],
        noise=noise,
        signal_by_region=tuple(line["signal_by_block"]),
        bias_by_region=tuple(line["bias_by_block"]),
        noise_by_region=noise_stddev * math.sqrt(dim),
        error_at={factor: math.hypot(bias, added) for factor, added, bias, _ in tried},
        agreement_at={
            factor: agreement(signal=signal, kept=kept, bias=bias, noise=added) for factor, added, bias, kept in tried
        },
    )


def _warnings(rounds: Sequence[ClippedRound], *, is_client: bool) -> list[str]:
    count, found = len(rounds), []
    everybody = sum(r.clipped_share >= 0.99 for r in rounds)
    if 2 * everybody >= count:
        found.append(f"(nearly) every vector was clipped in {everybody} of {count} rounds: only directions are shared")
    longest = max((length / r.bound for r in rounds for length in r.norm_quantiles.values()), default=0.0)
    if is_client and all(r.clipped_share == 0 for r in rounds) and longest < 1.0 - LEAST:
        found.append("no vector was ever clipped: a smaller bound would have meant less noise for the same vectors")
    drowned = sum(r.noise >= 10 * r.signal for r in rounds)
    if 2 * drowned >= count:
        found.append(f"the noise was ten times the signal or more in {drowned} of {count} rounds: little was shared")
    return found


@dataclass(frozen=True, kw_only=True)
class PublishedNorms:
    """Public: histogram of the norms of one round's vectors, covered by one charge.

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
    """Price a publication of norms without looking: its cost and the ledger's new total; None if charged already.

    Raises:
        ConfigurationError: If the multiplier is not positive or not that of the norms that are published already, or
            guardians held the vectors.
        BudgetExceeded: If the ledger's budget is too small.
        PolicyError: If the run's policy refuses it.
        LedgerError: If its bound is for the run's plan alone.
    """
    _require_publishable(record, noise_multiplier)
    request = norm_histogram_request(np.array(BOUND_FACTORS), record.spec.problem.n_clients)
    event = mechanism_for(request, noise_multiplier=noise_multiplier).event()
    run = f"{record.run_id}-norms"
    last = max((release.round for release in record.releases), default=None)
    if _published(record, last, event):
        return None
    return spending(record.ledger, record.plan.safe_delta, f"the norms of round {last}", charges={run: event})


def _published(record: Record, round_: int | None, event: Event) -> bool:
    """Whether the norms of a round were published already; refuses to publish them again with other noise."""
    entry = record.ledger.book().charges.get(f"{record.run_id}-norms/{round_}")
    if entry is not None and entry.event != event:
        raise ConfigurationError(
            f"the norms of round {round_} are published already, as {entry.event}; ask with its noise multiplier, "
            "which is free"
        )
    return entry is not None


def _require_publishable(record: Record, noise_multiplier: float) -> None:
    if not noise_multiplier > 0:
        raise ConfigurationError(f"noise_multiplier={noise_multiplier!r} must be > 0")
    if (privacy := record.plan.privacy).trust == "guardians" or privacy.unit != "client":
        raise ConfigurationError(
            "norms are published by a door that sees every vector and hides one client, and in a run with "
            f"trust={privacy.trust!r}, unit={privacy.unit!r} none does; run a small one with trust='server', "
            "unit='client' on data that may be seen by its server"
        )


def publish_norms(record: Record, *, noise_multiplier: float) -> PublishedNorms:
    """Release a noisy histogram of the norms of the last round's vectors; charges the ledger once.

    Asking again with the same multiplier gives the same release, which is free.

    Raises:
        ConfigurationError: If the multiplier is not positive or not that of the norms that are published already, or
            guardians held the vectors.
        BudgetExceeded: If the ledger's budget is too small; nothing was released.
        PolicyError: If the run's policy refuses it; nothing was released.
        RunError: If the clients' state is not on this machine.
    """
    _require_publishable(record, noise_multiplier)
    round_, bound, rows = _last_answers(record)
    edges = bound * np.array(BOUND_FACTORS)
    request = norm_histogram_request(edges, record.spec.problem.n_clients)
    _published(record, round_, mechanism_for(request, noise_multiplier=noise_multiplier).event())
    door = Door(
        record.ledger,
        run=f"{record.run_id}-norms",
        noise=SecureNoise(),
        mechanism=lambda wanted: mechanism_for(wanted, noise_multiplier=noise_multiplier),
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
    setup = setup_of(spec, home.seed, record.manifest.public_seed)
    nobody = dataclasses.replace(spec.problem, objective=lambda _client, _params: math.nan, batch_objective=None)
    answers = []
    for group in home.groups_of(setup.setting.n_clients):
        clients = clients_of(setup, np.arange(*group), nobody.evaluator(_no_evaluation), apart=spec.problem.is_asked)
        clients.restore(States.of(home.private, group[0]).load() or {})
        answers.append(answers_of(clients, last, request.dim))
    return last.round, request.clipping_norm / np.sqrt(request.n_blocks), np.concatenate(answers)


def _no_evaluation() -> None:
    raise RunError("the last round was not answered before; resume the run first")
