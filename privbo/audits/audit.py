"""The audit of a run or of a configuration, as one typed result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privbo.audits.clipping import ClippingAudit
from privbo.audits.empirical import Empirical
from privbo.audits.publish import PublishedNorms
from privbo.protocol.plain import in_two_lines, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import Table


@dataclass(frozen=True, kw_only=True)
class Audit:
    """PRIVATE where it holds a clipping audit: what an audit found.

    Attributes:
        name: Name of the run or the configuration.
        clipping: PRIVATE: effect of clipping on the run's vectors; None for a configuration.
        empirical: Outcomes of attacking the mechanism, one per mechanism and world.
        published: Public: histogram of norms that was paid for, or None.
        page: Where the page was written, or None.
    """

    name: str
    clipping: ClippingAudit | None
    empirical: tuple[Empirical, ...]
    published: PublishedNorms | None = None
    page: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether no attack contradicts the claim."""
        return all(row.passed for row in self.empirical)

    def __repr__(self) -> str:
        clipping = "no clipping audit" if self.clipping is None else self.clipping.verdict
        attacks = f"{len(self.empirical)} attacks, {'none' if self.passed else 'SOME'} beyond the claim"
        return in_two_lines("Audit", self.name, attacks, clipping)

    def _repr_html_(self) -> str:
        """Show the verdicts in a notebook."""
        clipping = {} if self.clipping is None else {"clipping": self.clipping.verdict}
        attacks = {f"{row.event}, {row.world}": row.verdict for row in self.empirical}
        return Table.of(f"Audit: {self.name}", clipping | attacks).html()

    def to_dict(self) -> JsonObject:
        """Give the audit as JSON-able data; what was not asked for is left out."""
        found: JsonObject = {"audit": self.name, "empirical": plain(self.empirical)}
        if self.clipping is not None:
            found |= {"note": self.clipping.note, "clipping": plain(self.clipping)}
        if self.page is not None:
            found["report"] = str(self.page)
        if self.published is not None:
            found["published_norms"] = plain(self.published)
        return found
