"""The figures of the DP-FTS-DE paper: which experiment, which arms, and what the paper says of them.

Every figure carries the controls of a claim: local TS, the reference mechanism with the
clients' sum zeroed (its noise alone), and DE initialisation with uniform random federated
steps. Non-private arms stand for "FTS" and "FTS-DE". Values the paper does not give
(which S, which P beyond the named ones) are ours and said so in ``note``.

Longer than 300 lines: one entry per figure of the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import privbo as pb
from experiments.arms import Arm
from experiments.dp_fts_de_benchmarks import Benchmark
from privbo.protocol.messages import Algorithm

Arms: TypeAlias = Callable[[Benchmark], tuple[Arm, ...]]
RATES, LEVELS = (0.1, 0.15, 0.2, 0.25), (1.0, 1.6, 2.0, 3.0, 4.0)

# On landmine both cost 2.00 at delta = N^-1.1, on the others nearly so.
SAME_PRICE = (("ours, epsilon 2", "DP-FTS-DE, q=0.35, z=2"),)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        benchmarks: Its panels' experiments.
        arms: Its curves or dots, beside the controls.
        kind: ``"curves"`` against rounds or ``"trade-off"`` of final loss against epsilon.
        statement: What the paper says it shows.
        note: Where the paper leaves a value open.
        contrasts: Pairs of labels whose difference the statement is about.
    """

    benchmarks: tuple[str, ...]
    arms: Arms
    kind: Literal["curves", "trade-off"] = "curves"
    statement: str
    note: str = ""
    contrasts: tuple[tuple[str, str], ...] = ()


def paper_noise(
    benchmark: Benchmark, z: float = 1.0, q: float | None = None, sampling: Literal["poisson", "fixed-size"] = "poisson"
) -> pb.Privacy:
    """The paper's noise with its true price in the ledger; seeded, for simulation."""
    return pb.Privacy(
        noise_multiplier=z,
        sample_rate=benchmark.sample_rate if q is None else q,
        calibration="paper",
        sampling=sampling,
        delta=pb.paper_delta(benchmark.n_clients),
        noise="simulation",
    )


def private(benchmark: Benchmark, label: str, algorithm: Algorithm, *, z: float = 1.0, q: float | None = None) -> Arm:
    """An arm with the paper's noise."""
    return Arm(label=label, algorithm=algorithm, privacy=paper_noise(benchmark, z, q))


def noise_alone(benchmark: Benchmark, label: str, algorithm: Algorithm) -> Arm:
    """The mechanism of an arm of that label with the clients' sum zeroed."""
    return Arm(label=f"{label}, sum zeroed", algorithm=algorithm, privacy=paper_noise(benchmark), control="zeroed")


def plain(label: str, algorithm: Algorithm) -> Arm:
    """An arm without privacy."""
    return Arm(label=label, algorithm=algorithm, privacy=pb.NoPrivacy())


def ours(benchmark: Benchmark, epsilon: float) -> tuple[Arm, Arm]:
    """Our setting at a tight epsilon (delta = N^-1.1), everyone in every round, and its noise alone."""
    privacy = pb.Privacy(epsilon=epsilon, delta=pb.paper_delta(benchmark.n_clients), noise="simulation")
    label = f"ours, epsilon {epsilon:g}"
    return (
        Arm(label=label, algorithm=benchmark.ours, privacy=privacy),
        Arm(label=f"{label}, sum zeroed", algorithm=benchmark.ours, privacy=privacy, control="zeroed"),
    )


def controls(benchmark: Benchmark) -> tuple[Arm, ...]:
    """Local TS, the paper's mechanism with the sum zeroed, DE initialisation with uniform federated steps."""
    return (
        plain("local TS", benchmark.paper.local()),
        noise_alone(benchmark, "DP-FTS-DE", benchmark.paper),
        plain("DE start, uniform steps", replace(benchmark.paper, federated_step="uniform")),
    )


def regions(benchmark: Benchmark, count: int, clipping_norm: float | None = None) -> pb.DPFTSDE:
    """The paper's setting with another number of regions, and another clipping norm if named."""
    norm = benchmark.paper.clipping_norm if clipping_norm is None else clipping_norm
    return replace(benchmark.paper, n_regions=count, clipping_norm=norm)


def _benefit(b: Benchmark) -> tuple[Arm, ...]:
    return (
        plain("FTS", regions(b, 1)),
        *(plain(f"FTS-DE, P={count}", regions(b, count)) for count in (2, 3, 4)),
    )


def _clipping(b: Benchmark) -> tuple[Arm, ...]:
    return tuple(private(b, f"DP-FTS-DE, S={s:g}", regions(b, 2, s)) for s in (3.0, 6.0, 11.0, 20.0))


def _rates(b: Benchmark) -> tuple[Arm, ...]:
    return tuple(private(b, f"DP-FTS-DE, q={q:g}", b.paper, q=q) for q in (0.15, 0.25, 0.5))


def _noises(b: Benchmark) -> tuple[Arm, ...]:
    return tuple(private(b, f"DP-FTS-DE, z={z:g}", b.paper, z=z) for z in (1.0, 1.2, 1.5))


def _trade_off(b: Benchmark) -> tuple[Arm, ...]:
    rate = b.sample_rate
    return (
        plain("FTS", regions(b, 1)),
        plain("FTS-DE", b.paper),
        *(private(b, f"DP-FTS-DE, q={rate:g}, z={z:g}", b.paper, z=z) for z in LEVELS),
        *(private(b, f"DP-FTS-DE, q={q:g}, z=1", b.paper, q=q) for q in RATES),
        *ours(b, 2.0),
    )


def _convergence(b: Benchmark) -> tuple[Arm, ...]:
    rate = b.sample_rate
    return (
        plain("FTS-DE", b.paper),
        private(b, f"DP-FTS-DE, q={rate:g}, z=1", b.paper),
        private(b, f"DP-FTS-DE, q={rate:g}, z=2", b.paper, z=2.0),
        private(b, "DP-FTS-DE, q=0.25, z=1", b.paper, q=0.25),
        *ours(b, 2.0),
    )


def _without_regions(b: Benchmark) -> tuple[Arm, ...]:
    alone, tight = regions(b, 1, 8.0), replace(paper_noise(b), calibration="tight")
    return (
        private(b, "DP-FTS-DE (P=2, S=11)", b.paper),
        private(b, "DP-FTS (P=1, S=8)", alone),
        noise_alone(b, "DP-FTS (P=1, S=8)", alone),
        plain("FTS-DE", b.paper),
        plain("FTS", regions(b, 1)),
        Arm(label="ours, z=1", algorithm=b.ours, privacy=tight),
        Arm(label="ours, z=1, sum zeroed", algorithm=b.ours, privacy=tight, control="zeroed"),
        *ours(b, 1.0),
    )


def _components(b: Benchmark) -> tuple[Arm, ...]:
    even = replace(b.paper.weighting, sharpness=0.0)
    return (
        plain("FTS-DE", b.paper),
        plain("FTS-DE, equal weights", replace(b.paper, weighting=even)),
        plain("FTS-DE, start everywhere", replace(b.paper, start="everywhere")),
        plain("FTS", regions(b, 1)),
    )


def _counts(b: Benchmark) -> tuple[Arm, ...]:
    return tuple(arm for count in (1, 2, 3, 4) for arm in _in_regions(b, count))


def _in_regions(b: Benchmark, count: int) -> tuple[Arm, ...]:
    """With privacy in so many regions; its noise alone too where the controls' is another number's."""
    label, algorithm = f"DP-FTS-DE, P={count}", regions(b, count)
    own = () if count == b.paper.n_regions else (noise_alone(b, label, algorithm),)
    return (private(b, label, algorithm), *own)


def _heterogeneous(b: Benchmark) -> tuple[Arm, ...]:
    faster = replace(b.paper, exploration=pb.Exploration(power=1.0))
    return (
        plain("FTS-DE, 1-p = 1/sqrt(t)", b.paper),
        plain("FTS-DE, 1-p = 1/t", faster),
        private(b, "DP-FTS-DE, z=1", b.paper),
        *ours(b, 1.0),
    )


def _same_price(b: Benchmark) -> tuple[Arm, ...]:
    found: list[Arm] = []
    for q, z in ((b.sample_rate, 1.0), (0.25, 1.0), (b.sample_rate, 2.0)):
        found.append(private(b, f"DP-FTS-DE, q={q:g}, z={z:g}", b.paper, q=q, z=z))
        found.append(private(b, f"DP-FTS, q={q:g}, z={z:g}", regions(b, 1, 11.0), q=q, z=z))
    return (*found, noise_alone(b, "DP-FTS", regions(b, 1, 11.0)))


def _weightings(b: Benchmark) -> tuple[Arm, ...]:
    forms = {
        "weights of the paper": pb.Weighting(),
        "weights 1 (a=9)": pb.Weighting(sharpness=9.0),
        "weights 2 (a, 1000)": pb.Weighting(form="linear", sharpness=1000.0),
        "weights 3 (a^2, 40)": pb.Weighting(form="square", sharpness=40.0),
    }
    found: list[Arm] = []
    for label, weighting in forms.items():
        algorithm = replace(b.paper, weighting=weighting)
        found += [plain(f"FTS-DE, {label}", algorithm), private(b, f"DP-FTS-DE, {label}", algorithm)]
    return tuple(found)


def _numbers_of_regions(b: Benchmark) -> tuple[Arm, ...]:
    found: list[Arm] = []
    for count in (2, 3, 4, 6):
        found += [plain(f"FTS-DE, P={count}", regions(b, count)), *_in_regions(b, count)]
    return tuple(found)


def _without_replacement(b: Benchmark) -> tuple[Arm, ...]:
    def arm(q: float, z: float) -> Arm:
        privacy = paper_noise(b, z, q, "fixed-size")
        return Arm(label=f"fixed-size, q={q:g}, z={z:g}", algorithm=b.paper, privacy=privacy)

    return (
        plain("FTS-DE", b.paper),
        *(arm(b.sample_rate, z) for z in LEVELS),
        *(arm(q, 1.0) for q in RATES),
    )


def _adaptive(b: Benchmark) -> tuple[Arm, ...]:
    fixed = replace(b.paper, weighting=replace(b.paper.weighting, schedule="constant"))
    return (
        private(b, "DP-FTS-DE, adaptive weights", b.paper),
        private(b, "DP-FTS-DE, non-adaptive weights", fixed),
    )


def _few_points(b: Benchmark) -> tuple[Arm, ...]:
    return (
        private(b, "paper's setting, q=0.35, z=1", b.paper),
        plain("ours, not private", b.ours),
        *ours(b, 2.0),
        *ours(b, 1.0),
    )


FIGURES: dict[str, Figure] = {
    "2a": Figure(
        benchmarks=("synthetic",),
        arms=_benefit,
        statement="FTS converges faster than TS, FTS-DE improves it considerably, more regions help more.",
        note="The numbers of regions beyond P=2 are ours.",
        contrasts=(
            ("FTS-DE, P=2", "FTS"),
            ("FTS-DE, P=4", "FTS"),
            ("FTS-DE, P=4", "FTS-DE, P=2"),
        ),
    ),
    "2b": Figure(
        benchmarks=("synthetic",),
        arms=_clipping,
        statement="S=11 is best: a smaller S clips too many vectors, a larger one makes more noise.",
        note="The other values of S are ours.",
        contrasts=(
            ("DP-FTS-DE, S=3", "DP-FTS-DE, S=11"),
            ("DP-FTS-DE, S=20", "DP-FTS-DE, S=11"),
        ),
    ),
    "2c": Figure(
        benchmarks=("synthetic",),
        arms=_rates,
        statement="A larger q is better and costs more: 5.93, 9.91, 20.12 at q = 0.15, 0.25, 0.5.",
        contrasts=(("DP-FTS-DE, q=0.5", "DP-FTS-DE, q=0.15"),),
    ),
    "2d": Figure(
        benchmarks=("synthetic",),
        arms=_noises,
        statement="A smaller z is better and costs more: 9.91, 7.39, 5.22 at z = 1, 1.2, 1.5.",
        contrasts=(("DP-FTS-DE, z=1.5", "DP-FTS-DE, z=1"),),
    ),
    **{
        panel: Figure(
            benchmarks=(name,),
            arms=_trade_off,
            kind="trade-off",
            statement="DP-FTS-DE beats TS in all settings; a smaller privacy loss is generally a worse result.",
            contrasts=SAME_PRICE,
        )
        for panel, name in (("3a", "landmine"), ("3b", "activity"), ("3c", "writers"))
    },
    **{
        panel: Figure(
            benchmarks=(name,),
            arms=_convergence,
            statement="DP-FTS-DE and FTS-DE converge faster than TS; more privacy is slower.",
            contrasts=SAME_PRICE,
        )
        for panel, name in (("3d", "landmine"), ("3e", "activity"), ("3f", "writers"))
    },
    "3d-authors": Figure(
        benchmarks=("landmine-authors",),
        arms=_convergence,
        statement="1 - AUC after 60 iterations: TS 0.2375, FTS-DE 0.2315, DP-FTS-DE 0.232 (z=1), 0.2333 (z=2).",
        note="The authors' code: Platt's probabilities on random folds, its own models; their curves, not their text.",
        contrasts=SAME_PRICE,
    ),
    "4": Figure(
        benchmarks=("synthetic",),
        arms=_without_regions,
        statement="With privacy, DE (P=2, S=11) is significantly better than DP-FTS (P=1, S=8) at the same price.",
        contrasts=(
            ("DP-FTS-DE (P=2, S=11)", "DP-FTS (P=1, S=8)"),
            ("ours, z=1", "DP-FTS (P=1, S=8)"),
            ("ours, epsilon 1", "DP-FTS (P=1, S=8)"),
            ("ours, epsilon 1", "DP-FTS-DE (P=2, S=11)"),
        ),
    ),
    "5": Figure(
        benchmarks=("synthetic",),
        arms=_components,
        statement="Both components of DE are needed: equal weights or starts everywhere are significantly worse.",
        contrasts=(
            ("FTS-DE, equal weights", "FTS-DE"),
            ("FTS-DE, start everywhere", "FTS-DE"),
        ),
    ),
    "6": Figure(
        benchmarks=("synthetic",),
        arms=_counts,
        statement="A smaller and a larger P are both worse (q=0.25, z=1, S=11).",
        note="The numbers of regions are ours.",
        contrasts=(
            ("DP-FTS-DE, P=1", "DP-FTS-DE, P=2"),
            ("DP-FTS-DE, P=4", "DP-FTS-DE, P=2"),
        ),
    ),
    "7a": Figure(
        benchmarks=("alpha-0.7",),
        arms=_heterogeneous,
        statement="At alpha=0.7 FTS-DE still beats TS, by less.",
        contrasts=(
            ("FTS-DE, 1-p = 1/t", "FTS-DE, 1-p = 1/sqrt(t)"),
            ("ours, epsilon 1", "DP-FTS-DE, z=1"),
        ),
    ),
    "7b": Figure(
        benchmarks=("alpha-1",),
        arms=_heterogeneous,
        statement="At alpha=1 FTS-DE is worse than TS; with 1-p falling faster it is comparable.",
        note="The faster schedule is not named; 1/t is ours.",
        contrasts=(
            ("FTS-DE, 1-p = 1/t", "FTS-DE, 1-p = 1/sqrt(t)"),
            ("ours, epsilon 1", "DP-FTS-DE, z=1"),
        ),
    ),
    "8": Figure(
        benchmarks=("activity",),
        arms=_same_price,
        statement="With privacy, DE (S=22) is better than DP-FTS (S=11) at the same price, in three settings.",
        note="The three settings are ours.",
        contrasts=(
            ("DP-FTS-DE, q=0.35, z=1", "DP-FTS, q=0.35, z=1"),
            ("DP-FTS-DE, q=0.25, z=1", "DP-FTS, q=0.25, z=1"),
            ("DP-FTS-DE, q=0.35, z=2", "DP-FTS, q=0.35, z=2"),
        ),
    ),
    "9": Figure(
        benchmarks=("activity", "writers"),
        arms=_weightings,
        statement="Results are robust against the choice of weights.",
        contrasts=(
            ("DP-FTS-DE, weights 1 (a=9)", "DP-FTS-DE, weights of the paper"),
            ("DP-FTS-DE, weights 2 (a, 1000)", "DP-FTS-DE, weights of the paper"),
            ("DP-FTS-DE, weights 3 (a^2, 40)", "DP-FTS-DE, weights of the paper"),
        ),
    ),
    "10": Figure(
        benchmarks=("activity", "writers"),
        arms=_numbers_of_regions,
        statement="Results are robust against P = 2, 3, 4, 6.",
        contrasts=(
            ("DP-FTS-DE, P=2", "DP-FTS-DE, P=4"),
            ("DP-FTS-DE, P=3", "DP-FTS-DE, P=4"),
            ("DP-FTS-DE, P=6", "DP-FTS-DE, P=4"),
        ),
    ),
    "11": Figure(
        benchmarks=("landmine",),
        arms=_without_replacement,
        kind="trade-off",
        statement="Rényi DP (sampling without replacement) gives slightly better privacy losses at comparable utility.",
    ),
    "few-points": Figure(
        benchmarks=("activity-log", "writers-log"),
        arms=_few_points,
        statement="(no figure of the paper: real clients whose surfaces agree, two initial points, 20 rounds)",
    ),
    "12a": Figure(
        benchmarks=("synthetic",),
        arms=_adaptive,
        statement="Adaptive weights end better than non-adaptive ones; both beat TS.",
        contrasts=(("DP-FTS-DE, adaptive weights", "DP-FTS-DE, non-adaptive weights"),),
    ),
    "12b": Figure(
        benchmarks=("activity",),
        arms=_adaptive,
        statement="Adaptive weights end better than non-adaptive ones; both beat TS.",
        contrasts=(("DP-FTS-DE, adaptive weights", "DP-FTS-DE, non-adaptive weights"),),
    ),
}
