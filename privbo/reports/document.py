"""One HTML page that opens offline: a template's text, everything escaped, no request, no script.

Figures stand in the page as SVG. The content-security policy admits no script at all, so nothing that slipped into a
name could ever run.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from accountant.wording import upper_text
from privbo.protocol.files import write_atomically
from privbo.reports.figure import Figure

_POLICY = (
    "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A page before it is rendered.

    Attributes:
        title: Shown as heading and in the browser's tab.
        template: File name in ``privbo/reports/templates``, or a template, that extends ``base.html.j2``.
        content: Names the template reads; ``figures`` is added.
        figures: By the name of the place in the template.
    """

    title: str
    template: str | Template
    content: Mapping[str, object] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)


def write_document(document: Document, path: Path) -> Path:
    """Write a page atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(document).encode())
    return path


def render(document: Document) -> str:
    """Render a page as text."""
    ours = {"policy": _POLICY, "style": _style()}
    return (
        environment()
        .get_template(document.template)
        .render(
            {name: Markup(text) for name, text in ours.items()},  # noqa: S704  # our own files, no value of a run
            title=document.title,
            figures=document.figures,
            **document.content,
        )
    )


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
        "text": plain_text,
        "exact": exact,
        "bound": upper_text,
        "percent": _unbroken_percent,
        "svg": Figure.svg,
    }
    made.globals["infinity"] = math.inf
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made


@lru_cache(maxsize=1)
def _style() -> str:
    return importlib.resources.files("privbo.reports").joinpath("templates", "style.css").read_text(encoding="utf-8")


def plain_text(value: object) -> str:
    """Write a value for people: floats with three significant digits, None as a dash, infinity in a word."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "-" if math.isnan(value) else "infinite" if math.isinf(value) else f"{value:.3g}"
    return str(value)


def exact(value: object) -> str:
    """Write a setting as it was asked for, all digits."""
    return repr(value) if isinstance(value, float) and math.isfinite(value) else plain_text(value)


def percent_bound(share: float) -> str:
    """Write a share in percent, rounded up to tenths so that a bound stays one."""
    return f"{min(1000, math.ceil(1000 * share)) / 10:.1f} %"


def _unbroken_percent(share: float) -> str:
    """The same for a page, where the sign must not stand alone on the next line."""
    return percent_bound(share).replace(" ", "\u00a0")
