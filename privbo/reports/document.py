"""One HTML page that opens offline: a template's text, everything escaped, no request, no script.

Figures stand in the page as SVG. The content-security policy admits no script at all, so nothing that slipped into a
name could ever run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from accountant.verify.text import at_least
from accountant.wording import counted, upper_text
from privbo.protocol.files import require_page, write_atomically
from privbo.protocol.table import Table, text_of
from privbo.reports.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Document:
    """A page before it is rendered.

    Attributes:
        title: Shown as heading and in the browser's tab.
        template: File name in ``privbo/reports/templates``, or a template, that extends ``base.html.j2``.
        content: Names the template reads; ``title`` and ``figures`` are added.
        figures: By the name of the place in the template.
    """

    title: str
    template: str | Template
    content: Mapping[str, object] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def render(self) -> str:
        """Render the page as text."""
        template = environment().get_template(self.template)
        return template.render(title=self.title, figures=self.figures, **self.content)

    def write(self, path: Path, *, private: bool = False) -> Path:
        """Write the page atomically, for its owner's eyes only where it is private; returns its path.

        Raises:
            ConfigurationError: If it would replace a file that is no page, or be private among public files.
        """
        require_page(path, private=private)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.render().encode(), mode=0o600 if private else 0o666)
        return path


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Make the environment of the templates: everything is escaped, and a missing name is an error."""
    made = Environment(
        loader=PackageLoader("privbo.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "text": text_of,
        "bound": upper_text,
        "least": at_least,
        "counted": counted,
        "percent": lambda share: percent_bound(share).replace(" ", "\u00a0"),  # no sign alone on the next line
        "svg": Figure.svg,
    }
    made.globals |= {"infinity": math.inf, "table": Table, "listing": Table.listing, "formats": made.filters}
    return made


def percent_bound(share: float) -> str:
    """Write a share in percent, rounded up to tenths so that a bound stays one."""
    return f"{min(1000, math.ceil(1000 * share)) / 10:.1f} %"
