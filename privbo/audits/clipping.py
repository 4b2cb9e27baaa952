"""PRIVATE: effect of clipping (norms, bias and noise per round), from a run's private folder.

Everything here is computed from clients' raw vectors and covered by no epsilon. Using it
to set the next run's bound is a choice made from private data; what may be published is
made by ``privbo.audits.publish``, which charges the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privbo.audits.advice import Advice, advise, agreement
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_lines
from privbo.protocol.plain import fields_of, in_two_lines
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import Table
from privbo.runs.record import Record
from privbo.runs.sources import algorithm_table

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
        noise: Norm that the added noise has on average.
        signal_by_region: ``signal`` of every block.
        bias_by_region: ``bias`` of every block.
        noise_by_region: ``noise`` of one block.
        error_at: sqrt(bias^2 + noise^2) as it would have been with the bound multiplied by each factor.
        agreement_at: Expected cosine between the release and the sum as meant, for the same factors.
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
    """

    name: str
    rounds: tuple[ClippedRound, ...]
    clipping_norm: float
    advice: Advice
    warnings: tuple[str, ...]
    note: str = NOTE

    def __repr__(self) -> str:
        return in_two_lines("ClippingAudit", self.name, f"{len(self.rounds)} rounds, {self.note}", self.verdict)

    @property
    def best_clipping_norm(self) -> float:
        """S that is advised; the run's own where there is nothing to gain."""
        return self.advice.factor * self.clipping_norm

    @property
    def verdict(self) -> str:
        """The advice in one sentence."""
        text = self.advice.text(self.clipping_norm)
        return f"{text[0].upper()}{text[1:]}."

    def by_factor(self) -> dict[float, float]:
        """Average over rounds, by factor on S, of what the advice is made from: agreement, or bias and noise."""
        at = [r.agreement_at if self.advice.use == "direction" else r.error_at for r in self.rounds]
        return {float(factor): float(np.mean([found[factor] for found in at])) for factor in at[0]}

    def to_dict(self) -> JsonObject:
        """Give the audit as JSON-able data."""
        return fields_of(self) | {"best_clipping_norm": self.best_clipping_norm}

    def _repr_html_(self) -> str:
        """Show the verdict in a notebook."""
        last = self.rounds[-1]
        facts = {"verdict": self.verdict, "clipped in the last round": f"{last.clipped_share:.0%}", "note": self.note}
        return Table.of(f"Audit: {self.name}", facts).html()


def audit(record: Record) -> ClippingAudit:
    """PRIVATE: measure what clipping did to a run's vectors.

    Raises:
        RunError: If the run is in memory, its private folder is not here, or is of an older release.

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
    home = record.home
    lines = {row["round"]: row for row in read_lines(home.clipping_path)}
    rounds = tuple(
        _round(lines[r.round], noise_stddev=r.noise_stddev, shape=r.values.shape)
        for r in record.releases
        if r.round in lines and lines[r.round]["bound"] is not None
    )
    if not rounds and record.plan.privacy.trust == "guardians":
        raise RunError("this run's vectors were shared among guardians, so nobody knows how clipping met them")
    if not rounds:
        raise RunError(f"{home.private} holds no clip statistics; audit the run where its clients answered")
    last = rounds[-1]
    return ClippingAudit(
        name=record.spec.name,
        rounds=rounds,
        clipping_norm=last.bound * math.sqrt(len(last.bias_by_region)),
        advice=_advice(record, rounds),
        warnings=tuple(_warnings(rounds)),
    )


def _advice(record: Record, rounds: Sequence[ClippedRound]) -> Advice:
    """Ask what the algorithm uses: the Thompson family maximises the released function or fits its scale."""
    if algorithm_table(record.spec.algorithm)["type"] in _DIRECTION:
        return advise("direction", [{float(f): v for f, v in r.agreement_at.items()} for r in rounds])
    whole = max(float(np.mean([r.signal for r in rounds])), 1e-300)
    return advise("magnitude", [{float(f): -v / whole for f, v in r.error_at.items()} for r in rounds])


_DIRECTION = {"dp-fts-de", "shared-prior", "scout"}


def _round(line: Mapping[str, Any], *, noise_stddev: float, shape: tuple[int, ...]) -> ClippedRound:
    if "kept_at" not in line:
        raise RunError("these clip statistics are of an older release of privbo and cannot be audited; run it again")
    n_blocks, dim = shape
    noise = noise_stddev * math.sqrt(n_blocks * dim)
    return ClippedRound(
        round=line["round"],
        bound=line["bound"],
        clipped_share=line["clipped_share"],
        norm_quantiles={f"{level:g}": q for level, q in zip(line["norm_levels"], line["norm_quantiles"], strict=False)},
        signal=math.hypot(*line["signal_by_block"]),
        bias=line["bias"],
        noise=noise,
        signal_by_region=tuple(line["signal_by_block"]),
        bias_by_region=tuple(line["bias_by_block"]),
        noise_by_region=noise_stddev * math.sqrt(dim),
        # Noise is proportional to the bound under both calibrations.
        error_at={
            f"{factor:.4g}": math.hypot(bias, factor * noise)
            for factor, bias in zip(line["bound_factors"], line["bias_at"], strict=True)
        },
        agreement_at={
            f"{factor:.4g}": agreement(
                signal=math.hypot(*line["signal_by_block"]), kept=kept, bias=bias, noise=factor * noise
            )
            for factor, bias, kept in zip(line["bound_factors"], line["bias_at"], line["kept_at"], strict=True)
        },
    )


def _warnings(rounds: Sequence[ClippedRound]) -> list[str]:
    count, found = len(rounds), []
    everybody = sum(r.clipped_share >= 0.99 for r in rounds)
    if 2 * everybody >= count:
        found.append(f"(nearly) every vector was clipped in {everybody} of {count} rounds: only directions are shared")
    if all(r.clipped_share == 0 for r in rounds):
        found.append("no vector was ever clipped: a smaller bound would have meant less noise for the same vectors")
    drowned = sum(r.noise >= 10 * r.signal for r in rounds)
    if 2 * drowned >= count:
        found.append(f"the noise was ten times the signal or more in {drowned} of {count} rounds: little was shared")
    return found
