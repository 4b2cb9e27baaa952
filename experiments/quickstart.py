"""What private sharing buys: 40 clients tune an SVM on unequal shards of handwritten digits.

Five arms on the same clients and seeds. Cumulative regret is the noiseless regret of
the best point so far, averaged over clients and summed over rounds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import privbo as pb
from experiments.arms import (
    Arm,
    Study,
    draw_curves,
    markdown_table,
    paired_difference,
    run_cells,
    summarise,
)
from privbo.protocol.files import write_atomically, write_json
from privbo.quickstart.digits_svm import problem

ROUNDS = 20
EPSILON = 2.0
BAR = 0.6


def arms(n_clients: int) -> tuple[Arm, ...]:
    """The private run, its controls, the paper's setting and the non-private run."""
    delta = pb.paper_delta(n_clients)
    private = pb.Privacy(epsilon=EPSILON, delta=delta, noise="simulation")
    paper = pb.Privacy(noise_multiplier=1.0, sample_rate=0.35, delta=delta, calibration="paper", noise="simulation")
    ours = pb.DPFTSDE()
    # As many initial points as everyone else; all else as in the paper's real experiments.
    printed = dataclasses.replace(pb.DPFTSDE.paper(), n_init=ours.n_init)
    return (
        Arm(label="private, epsilon 2", algorithm=ours, privacy=private),
        Arm(label="local TS", algorithm=ours.local(), privacy=pb.NoPrivacy()),
        Arm(label="clients' sum zeroed", algorithm=ours, privacy=private, control="zeroed"),
        Arm(label="paper's setting", algorithm=printed, privacy=paper),
        Arm(label="non-private", algorithm=ours, privacy=pb.NoPrivacy()),
    )


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all arms and write summary, table and figure."""
    count = seeds if seeds is not None else (10 if scale == "paper" else 3)
    n_clients = problem(0).n_clients
    study = Study(name="quickstart", problem=problem, arms=arms(n_clients), rounds=ROUNDS)
    summary = summarise(run_cells(study, range(count), out, jobs))
    private, local = summary["private, epsilon 2"], summary["local TS"]
    ratio = private["cumulative_regret"] / local["cumulative_regret"]
    verdict = {
        "ratio_to_local": ratio,
        "bar": BAR,
        "met": ratio <= BAR,
        "private_minus_local": paired_difference(private, local),
        "private_minus_zeroed": paired_difference(private, summary["clients' sum zeroed"]),
    }
    write_json(out / "summary.json", {"seeds": count, "rounds": ROUNDS, "arms": summary, "verdict": verdict})
    text = f"{count} seeds, {ROUNDS} rounds, {n_clients} clients; simulated (seeded) noise.\n\n"
    text += markdown_table(summary, n_clients)
    text += f"\nprivate / local TS = {ratio:.3f} (bar {BAR}: {'met' if ratio <= BAR else 'missed'})\n"
    write_atomically(out / "table.md", text.encode())
    title = f"Digits SVM, {n_clients} clients, {count} seeds (delta = N^-1.1)"
    draw_curves(summary, title, out / "figure.png")
