"""``python -m experiments NAME``: run one experiment and write what it found.

Every experiment writes ``summary.json``, ``table.md`` and ``figure.png`` into its
folder, keeps its finished cells there, and goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from accountant.errors import PrivacyError

EXPERIMENTS = {
    "quickstart": "40 clients tune an SVM on shards of digits: private, local, zeroed, paper's setting, non-private",
    "fed-pne": "Fed-PNE, figures 2 and 3: global regret beside HCT and Fed1-UCB, 1 to 1000 clients",
    "pf-pne": "PF-PNE: local regret beside per-client HCT, every way clients go on alone, communication",
    "parallel": "parallel X-armed bandit, figure 2: loss with 1, 4 and 16 players, averaged over shifts",
    "private-elimination": "regret of private Fed-PNE against epsilon at 100 to 10,000 clients; optimum lost",
    "private-personal": "local regret of private PF-PNE against epsilon at 100, 1000, 10,000 clients",
    "private-parallel": "loss of the private parallel bandit against epsilon with 100 to 10,000 players",
    "f-lcb-smooth": "F-LCB, Figure 1: three smooth functions, certified and printed rates",
    "f-lcb-nonsmooth": "F-LCB, Figure 2: three piecewise linear functions, triple averaging",
    "f-lcb-inexact": "F-LCB, Figure 3: noisy gradients, stochastic accelerated gradient",
    "f-lcb-federated": "private federated F-LCB: 1,000 clients, best of three smooth functions, against epsilon",
    "neural-arms": "Table 4 on digits: rank of the model selected by Hyperband, halving and F-LCB against budget",
    "neural-private": "private model selection on digits: F-LCB, halving, Hyperband, private selection against epsilon",
    "f-lcb-cifar10": "F-LCB, Figure 4: five models on CIFAR-10, where the archive is present",
    "f-lcb-five-models": "F-LCB, Figure 4's protocol: the same five models on scikit-learn's digits, enlarged",
    "f-lcb-cifar100": "F-LCB over the CIFAR-100 candidates, where the archive is present",
    "f-lcb-cauchy": "F-LCB, Figure 5: SGD-UCB-SMoM, its functional form and robust UCB under Cauchy noise",
}


# Figures of the DP-FTS-DE paper; one driver and one table of arms stand behind all of them.
DP_FTS_DE = {
    "2a": "synthetic: benefit of distributed exploration",
    "2b": "synthetic: clipping norms",
    "2c": "synthetic: sample rates",
    "2d": "synthetic: noise multipliers",
    "3a": "landmine: final loss against epsilon",
    "3b": "human activity: final loss against epsilon",
    "3c": "digits by writer: final loss against epsilon",
    "3d": "landmine: convergence",
    "3e": "human activity: convergence",
    "3f": "digits by writer: convergence",
    "3d-authors": "landmine: convergence with the authors' scores",
    "4": "synthetic: DP-FTS-DE against DP-FTS, ours beside them",
    "5": "synthetic: both components of distributed exploration",
    "6": "synthetic: number of regions",
    "7a": "synthetic: heterogeneous clients, alpha 0.7",
    "7b": "synthetic: independent clients, alpha 1",
    "8": "human activity: DP-FTS-DE against DP-FTS",
    "9": "human activity and digits by writer: weightings",
    "10": "human activity and digits by writer: number of regions",
    "11": "landmine: sampling without replacement",
    "few-points": "human activity and digits by writer on log scales, two initial points: where sharing helps",
    "12a": "synthetic: adaptive and non-adaptive weights",
    "12b": "human activity: adaptive and non-adaptive weights",
}
EXPERIMENTS["thompson-ablation"] = "DP-FTS-DE: what each change of ours brings at the same price, with controls"
EXPERIMENTS |= {f"dp-fts-de-{figure}": f"DP-FTS-DE, figure {figure}; {line}" for figure, line in DP_FTS_DE.items()}


def main() -> int:
    """Parse the command line and run; exit code 2 for bad input, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(EXPERIMENTS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name all experiments")
    parser.add_argument("--scale", choices=("small", "paper"), default="paper")
    parser.add_argument("--out", type=Path, help="folder to write into (default results/NAME)")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument(
        "--finished", action="store_true", help="figures of DP-FTS-DE: show what is finished, run nothing"
    )
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes")
    arguments = parser.parse_args()
    if arguments.list:
        for name, line in EXPERIMENTS.items():
            print(f"{name}: {line}")
        return 0
    if arguments.name is None:
        parser.error("name an experiment, or --list")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds} must be at least 1")
    out = arguments.out or Path("results") / arguments.name
    settings = {"scale": arguments.scale, "seeds": arguments.seeds, "jobs": arguments.jobs}
    name = arguments.name
    if name.startswith("dp-fts-de-"):
        figure = name.removeprefix("dp-fts-de-")
        name, settings = "dp-fts-de", settings | {"figure": figure, "finished_only": arguments.finished}
    elif arguments.finished:
        parser.error("--finished is for the figures of DP-FTS-DE")
    module = importlib.import_module(f"experiments.{name.replace('-', '_')}")
    try:
        module.main(out, **settings)
    except PrivacyError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with what is left", file=sys.stderr)
        return 130
    print((out / "table.md").read_text())
    print(f"written: {out / 'summary.json'}, {out / 'table.md'}, {out / 'figure.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
