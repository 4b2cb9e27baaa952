"""One HTML document that opens offline: everything escaped, no request, scripts allowed by hash only.

Figures are plain Plotly descriptions (data and layout). They travel as JSON in a block
that is never executed; one fixed script draws them. The content-security policy names
the hashes of the two scripts, so nothing that slipped into a name could ever run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from privbo.protocol.files import write_atomically

SHARED_SCRIPT = "plotly.min.js"
Figure = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A page: its title, its body as safe HTML, and the figures the body has places for."""

    title: str
    body: str
    figures: Mapping[str, Figure]


def write_document(document: Document, path: Path, *, shared_assets: bool = False) -> Path:
    """Write a page atomically; with ``shared_assets`` Plotly lies once beside many pages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if shared_assets:
        beside = path.parent / SHARED_SCRIPT
        if not beside.exists() or beside.read_bytes() != plotly_script().encode():
            write_atomically(beside, plotly_script().encode())
    write_atomically(path, render(document, shared_assets=shared_assets).encode())
    return path


def render(document: Document, *, shared_assets: bool = False) -> str:
    """The document as text."""
    if shared_assets:
        library = f'<script src="{SHARED_SCRIPT}"></script>'
        allowed = ["'self'", "file:", _source(_DRAW)]
    else:
        library = f"<script>{plotly_script()}</script>"
        allowed = [_source(plotly_script()), _source(_DRAW)]
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    scripts = ""
    if document.figures:
        scripts = (
            f'<script type="application/json" id="figures">{json_block(document.figures)}</script>'
            f"{library}<script>{_DRAW}</script>"
        )
    title = html.escape(document.title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>\n<h1>{title}</h1>\n"
        f"{document.body}\n</main>{scripts}</body></html>\n"
    )


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Plotly's library as it is inlined."""
    return importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _source(script: str) -> str:
    """A script's name in a content-security policy: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def json_block(content: object) -> str:
    """JSON that no HTML parser reads as a tag."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def text(value: object) -> str:
    """A value as escaped text; floats with five significant digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def bound(value: float | None) -> str:
    """An upper bound with five significant digits, rounded up so that it stays one."""
    if value is None or value == 0:
        return text(value)
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 4)
    return f"{math.ceil(value / unit - 1e-6) * unit:.5g}"


def section(title: str, *parts: str) -> str:
    """A headed part of the page; empty parts vanish, and so does a section without any."""
    kept = [part for part in parts if part]
    if not kept:
        return ""
    return f"<section><h2>{html.escape(title)}</h2>\n" + "\n".join(kept) + "</section>"


def paragraph(words: str, kind: str = "") -> str:
    """Escaped words as a paragraph; ``kind`` is one of the style sheet's classes."""
    opening = f'<p class="{kind}">' if kind else "<p>"
    return f"{opening}{html.escape(words)}</p>"


def warnings(notes: Iterable[str]) -> str:
    """Notes that must not be missed."""
    return "".join(paragraph(note, "warn") for note in notes)


def figure(name: str, caption: str, height: int = 340) -> str:
    """The place of one of the document's figures."""
    return (
        f'<figure><div class="plot" id="{html.escape(name)}" style="height:{height}px"></div>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, code: Sequence[int] = ()) -> str:
    """A table; numbers are aligned to the right, columns in ``code`` are set as code."""
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(_cell(v, i in code) for i, v in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(value: object, as_code: bool) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    inner = f"<code>{text(value)}</code>" if as_code else text(value)
    return f'<td class="n">{inner}</td>' if number else f"<td>{inner}</td>"


def facts(content: Mapping[str, object]) -> str:
    """Names and values, one per line."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td><code>{text(value)}</code></td></tr>'
        for name, value in content.items()
    )
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--soft:#5b6472;--line:#d5dae1;--paper:#fff;--mark:#eef3fb;--warn:#b45309}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa4b2;--line:#39414d;--paper:#14181f;--mark:#1d2836;
--warn:#f59e0b}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;margin:0}
body{color:var(--ink);background:var(--paper)}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.3rem}
p{overflow-wrap:anywhere}
p.big{font-size:1.35rem;line-height:1.4;background:var(--mark);padding:.9rem 1rem;border-radius:.4rem;margin:1rem 0}
.soft,figcaption{color:var(--soft);font-size:.93rem}
.warn{border-left:.3rem solid var(--warn);padding:.1rem 0 .1rem .8rem}
.scroll{overflow-x:auto}
.long{max-height:28rem;overflow:auto}
table{border-collapse:collapse;font-size:.93rem}
td,th{padding:.28rem 1rem .28rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:600}
table.facts th{font-weight:400;color:var(--soft);white-space:nowrap}
table.facts code{overflow-wrap:anywhere}
td.n{font-variant-numeric:tabular-nums;text-align:right}
figure{margin:1rem 0}
.plot{width:100%}
code,pre{font:.88em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--mark);padding:.7rem .9rem;border-radius:.4rem;overflow-x:auto}
@media(max-width:480px){main{padding:1rem .8rem 2rem}p.big{font-size:1.15rem}table.facts th{white-space:normal}}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--mark:#f3f3f3;--warn:#b45309}
main{max-width:none;padding:0}figure,tr{break-inside:avoid}h2{break-after:avoid}.long{max-height:none;overflow:visible}}
"""

# Colours follow the page's own variables; paper gets the light ones whatever the screen shows.
_DRAW = """(function(){
"use strict";
var specs=JSON.parse(document.getElementById("figures").textContent);
var paper={"--ink":"#000","--line":"#bbb"};
function colour(name,printing){
  return printing?paper[name]:getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function draw(printing){
  Object.keys(specs).forEach(function(id){
    var node=document.getElementById(id);
    if(!node){return;}
    var layout=JSON.parse(JSON.stringify(specs[id].layout));
    var ink=colour("--ink",printing),line=colour("--line",printing);
    layout.paper_bgcolor="rgba(0,0,0,0)";layout.plot_bgcolor="rgba(0,0,0,0)";
    layout.font={color:ink,family:"system-ui, sans-serif",size:13};
    ["xaxis","yaxis","yaxis2"].forEach(function(axis){
      if(layout[axis]){layout[axis].gridcolor=line;layout[axis].linecolor=line;layout[axis].zerolinecolor=line;}
    });
    Plotly.react(node,JSON.parse(JSON.stringify(specs[id].data)),layout,{displayModeBar:false,responsive:true});
  });
}
draw(false);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change",function(){draw(false);});
window.addEventListener("beforeprint",function(){draw(true);});
window.addEventListener("afterprint",function(){draw(false);});
})();"""
