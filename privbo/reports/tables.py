"""Tables of a comparison for papers and spreadsheets: Markdown, CSV, LaTeX, pandas."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from accountant.wording import multipliers_text, upper_text
from privbo.comparisons.comparison import Comparison, Row
from privbo.comparisons.verdict import Verdict
from privbo.protocol.plain import frame_of

if TYPE_CHECKING:
    import pandas as pd


def markdown(comparison: Comparison) -> str:
    """Write the table as Markdown, with the versions that made older rows and the contrasts that were asked for."""
    head, rows = cells(comparison)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    notes = [f"- {words}" for words in (*contrast_lines(comparison), *older_lines(comparison))]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def csv_text(comparison: Comparison) -> str:
    """Write the table as CSV, all digits; utilities that may not be shown have no column."""
    text = io.StringIO()
    rows = _dicts(comparison)
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def frame(comparison: Comparison) -> pd.DataFrame:
    """Make a pandas frame, one line per setting.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    return frame_of(_dicts(comparison))


def _dicts(comparison: Comparison) -> list[dict[str, object]]:
    hidden = set() if comparison.shows_utility else {"utility", "standard_error", "final"}
    return [
        {k: v for k, v in asdict(row).items() if k not in hidden}
        | {"noise_multipliers": multipliers_text(row.noise_multipliers)}
        for row in comparison.rows()
    ]


_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
          "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}  # fmt: skip


def latex(comparison: Comparison) -> str:
    """Write the table as LaTeX (booktabs)."""
    head, rows = cells(comparison)
    lines = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in (head, *rows)]
    columns = "l" + "r" * (len(head) - 1)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}"]) + "\n"


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Write a comparison's table as text: its head, and a row per setting."""
    judged = list(dict.fromkeys((comparison.measure, "final"))) if comparison.shows_utility else []
    strict = strict_head(comparison)
    head = ["setting", "epsilon", "delta", *strict, "noise multipliers", "releases", *judged, "seeds"]
    return head, [
        [
            row.setting,
            epsilon_text(row),
            delta_text(row),
            *(strict_text(row) for _ in strict),
            multipliers_text(row.noise_multipliers) if row.noise_multipliers else "-",
            str(row.releases),
            *_judged(row)[: len(judged)],
            str(row.seeds),
        ]
        for row in comparison.rows()
    ]


def _judged(row: Row) -> list[str]:
    """A mean to two digits of its error, so that no difference that matters is rounded away."""
    if row.utility is None or row.final is None:
        return ["-", "-"]
    if not row.standard_error:
        return [f"{row.utility:.4g}", f"{row.final:.4g}"]
    digits = min(9, max(0, 1 - math.floor(math.log10(row.standard_error))))
    return [f"{row.utility:.{digits}f} ± {row.standard_error:.{digits}f}", f"{row.final:.{digits}f}"]


def contrast_lines(comparison: Comparison) -> Sequence[str]:
    """Say every contrast that was asked for in a line: the mean difference, its standard error, p, seeds."""
    lines = []
    for found in comparison.differences() if comparison.contrasts else ():
        error = "" if found.standard_error is None else f" ± {found.standard_error:.4f} (p = {found.p_value:.2g})"
        lines.append(f"{found.first} minus {found.second}: {found.mean:+.4f}{error}, {found.n_seeds} seeds")
    return lines


def verdict_lines(found: Sequence[Verdict]) -> Sequence[str]:
    """PRIVATE: say whether sharing helped, a line for each control and measure; what is missing is said, too."""
    unknown = "whether sharing helped is not known: add controls = ['local'], the same clients alone"
    measures = {verdict.measure for verdict in found}
    numbers = {(verdict.measure, verdict.gain, verdict.standard_error) for verdict in found}
    agree = len({verdict.alone for verdict in found}) > 1 and len(numbers) == len(measures)
    same = ["the controls agree to all digits: noise alone changed nothing that any client did"] * agree
    return [*(verdict.text for verdict in found), *same] or [unknown]


def older_lines(comparison: Comparison) -> Sequence[str]:
    """Name the versions that made rows which the code here and now did not make."""
    return [f"{s.label}: made by older code ({'; '.join(s.older)})" for s in comparison.settings if s.older]


def strict_head(comparison: Comparison) -> list[str]:
    """Head of the column that quotes epsilon at the safe delta; empty where every setting is quoted there."""
    rows = [row for row in comparison.rows() if row.releases and row.epsilon is not None]
    if all(row.delta <= row.strict_delta for row in rows):
        return []
    deltas = {row.strict_delta for row in rows}
    return [
        f"epsilon at delta {upper_text(deltas.pop())}" if len(deltas) == 1 else "epsilon at delta min(1e-5, 1/(10 N))"
    ]


def strict_text(row: Row) -> str:
    """Write epsilon at the safe delta."""
    return _epsilon(row.strict_epsilon, row.releases)


def delta_text(row: Row) -> str:
    """Write delta for a table; a dash where it means nothing."""
    return "-" if row.releases == 0 or row.epsilon is None else upper_text(row.delta)


def epsilon_text(row: Row) -> str:
    """Write epsilon for a table: infinity and nothing released spelled out."""
    return _epsilon(row.epsilon, row.releases)


def _epsilon(value: float | None, releases: int) -> str:
    if releases == 0:
        return "nothing released"
    return "infinite" if value is None else upper_text(value)
