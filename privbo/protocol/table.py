"""One table, and its views: page and terminal, Markdown, CSV, LaTeX and pandas (an extra)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accountant.verify.text import shown
from privbo.protocol.errors import needs

if TYPE_CHECKING:
    import pandas as pd

_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
     "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$"}
)  # fmt: skip


def text_of(value: object) -> str:
    """Write a value for people: floats with four significant digits, None as a dash, infinity in a word.

    Example:
        >>> [text_of(value) for value in (None, 1.23456, float("inf"), "x")]
        ['-', '1.235', 'infinite', 'x']
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if math.isnan(value) else "infinite" if math.isinf(value) else f"{value:.4g}"
    return str(value)


def in_two_lines(kind: str, name: str, first: str, second: str) -> str:
    r"""Give a result's ``repr``: kind, name and the first facts, then the second; no text steers a terminal.

    Example:
        >>> print(in_two_lines("Plan", "", "3 releases", "epsilon 2"))
        <Plan: 3 releases
         epsilon 2>
    """
    head = " ".join(word for word in (kind, shown(name)) if word)
    return f"<{head}: {shown(first)}\n {shown(second)}>"


@dataclass(frozen=True, kw_only=True)
class Table:
    r"""Rows under headings.

    Attributes:
        title: What it shows; empty for none.
        headings: Names of the columns; empty for a table of names and values.
        rows: Values, one of every column.
        formats: How columns are written, by their index; other columns as ``text_of`` writes.
        right: Indices of columns that are flush right.

    Example:
        >>> table = Table(headings=("setting", "epsilon"), rows=[("a|b", 0.5)], right=(1,))
        >>> print(table.markdown(), end="")
        | setting | epsilon |
        |---|---|
        | a\|b | 0.5 |
        >>> table.csv()
        'setting,epsilon\na|b,0.5\n'
    """

    title: str = ""
    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    formats: Mapping[int, Callable[[Any], str]] = field(default_factory=dict)
    right: Container[int] = ()

    @classmethod
    def listing(cls, columns: Mapping[str, str], items: Iterable[object], **how: Any) -> Table:  # noqa: ANN401 (fields)
        """Make a table of attributes of objects; ``columns`` names each column's attribute by its heading."""
        rows = [[getattr(item, name) for name in columns.values()] for item in items]
        return cls(headings=tuple(columns), rows=rows, **how)

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[self.formats.get(at, text_of)(value) for at, value in enumerate(row)] for row in self.rows]

    @property
    def numeric(self) -> set[int]:
        """Indices of columns that are flush right: those of numbers, and those of ``right``."""
        cells = [(at, value) for row in self.rows for at, value in enumerate(row)]
        numbers = {at for at, v in cells if isinstance(v, int | float) and not isinstance(v, bool)}
        return numbers | {at for at in range(len(self.headings)) if at in self.right}

    def markdown(self) -> str:
        """Write the table as Markdown."""
        head, *lines = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (self.headings, *self.cells)
        )
        return "\n".join([head, "|" + "---|" * len(self.headings), *lines]) + "\n"

    def latex(self) -> str:
        """Write the table as LaTeX (booktabs)."""
        head, *lines = (
            " & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (self.headings, *self.cells)
        )
        body = [rf"\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}", r"\toprule", head, r"\midrule", *lines]
        return "\n".join([*body, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """Write the values as CSV, all digits."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *self.rows])
        return text.getvalue()

    def frame(self) -> pd.DataFrame:
        """Give the values as a pandas frame.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        with needs("pandas", "tables"):
            import pandas as pd
        return pd.DataFrame(list(self.rows), columns=list(self.headings))
