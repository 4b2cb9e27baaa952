"""A comparison's table for papers and spreadsheets: Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from privbo.comparisons.comparison import Comparison


def markdown(comparison: Comparison) -> str:
    """The table as Markdown."""
    head, rows = _cells(comparison)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(_escaped(row, "|", "\\|")) + " |" for row in rows)]) + "\n"


def csv_text(comparison: Comparison) -> str:
    """The table as CSV, all digits."""
    rows, text = comparison.rows(), io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}  # fmt: skip


def latex(comparison: Comparison) -> str:
    """The table as LaTeX (booktabs)."""
    head, rows = _cells(comparison)
    lines = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in (head, *rows)]
    columns = "l" + "r" * (len(head) - 1)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}"]) + "\n"


def _escaped(cells: Sequence[str], what: str, by: str) -> list[str]:
    return [cell.replace(what, by) for cell in cells]


def _cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    judged = [comparison.utility, "final"] if comparison.shows_utility else []
    strict = strict_head(comparison)
    head = ["setting", "epsilon", "delta", *strict, "noise multiplier", "releases", *judged, "seeds"]
    return head, [
        [
            row["setting"],
            epsilon_text(row),
            delta_text(row),
            *(strict_text(row) for _ in strict),
            "-" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.3g}",
            str(row["releases"]),
            *(_judged(row) if judged else []),
            str(row["seeds"]),
        ]
        for row in comparison.rows()
    ]


def _judged(row: Mapping[str, Any]) -> list[str]:
    error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.4f}"
    return [f"{row['utility']:.4f}{error}", f"{row['final']:.4f}"]


def strict_head(comparison: Comparison) -> list[str]:
    """The head of the column that quotes epsilon at the safe delta; empty where every setting is quoted there."""
    rows = [row for row in comparison.rows() if row["releases"] and row["epsilon"] is not None]
    if all(row["delta"] <= row["strict_delta"] for row in rows):
        return []
    deltas = {row["strict_delta"] for row in rows}
    return [f"epsilon at delta {deltas.pop():.3g}" if len(deltas) == 1 else "epsilon at delta min(1e-5, 1/(10 N))"]


def strict_text(row: Mapping[str, Any]) -> str:
    """Epsilon at the safe delta."""
    return epsilon_text({**row, "epsilon": row["strict_epsilon"]})


def delta_text(row: Mapping[str, Any]) -> str:
    """Delta in a table; a dash where it means nothing."""
    return "-" if row["releases"] == 0 or row["epsilon"] is None else f"{row['delta']:.3g}"


def epsilon_text(row: Mapping[str, Any]) -> str:
    """Epsilon in a table: infinity and nothing released spelled out."""
    if row["releases"] == 0:
        return "nothing released"
    return "infinite" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
