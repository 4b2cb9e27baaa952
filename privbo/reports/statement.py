"""A run's guarantee on one sheet, for an ethics board to sign: what is promised to whom, and what is not."""

from __future__ import annotations

from pathlib import Path

from privbo.plans.prices import worst_guess
from privbo.reports.document import Document, write_document
from privbo.reports.page import CHANGED
from privbo.reports.report import Report


def write_statement(report: Report, path: Path, *, key: str | None = None) -> Path:
    """Write the statement as a page that prints on one sheet; what only people know is left blank. Returns its path.

    Args:
        report: Of the run.
        path: Where to.
        key: Public key that signs its bundle and receipts, for the reader to compare; None leaves a blank.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> "protects nobody" in write_statement(pb.report(record), Path("statement.html")).read_text()
        True
    """
    return write_document(statement(report, key), path)


def statement(report: Report, key: str | None = None) -> Document:
    """Compose the page."""
    return Document(
        title=f"Privacy statement: {report.name}",
        template="statement.html.j2",
        content={
            "report": report,
            "key": key,
            "changed": CHANGED[report.adjacency.value],
            "worst": worst_guess(report.smallest_epsilon, report.delta),
        },
    )
