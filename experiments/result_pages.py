"""Put what experiments found onto pages: ``python -m experiments.result_pages RESULTS PAGE [PAGE ...]``.

The folder beside a page with the page's name keeps the summary of every experiment that the page shows as
``NAME.json``, five digits a number (NAME without the page's name in front). What stands in ``RESULTS`` is taken over
first; then everything on the page is made from what is kept, so that it can be made again without any cell:

- ``<!-- table NAME -->`` to ``<!-- end -->`` holds the experiment's table, ``<!-- table NAME: PANEL -->`` one panel's;
- ``<!-- across NAME: HEADS | ARMS | PANELS -->`` to ``<!-- end -->`` holds one column of several panels' tables, and
  ``<!-- places NAME: HEADS -->`` one of the first panel's by place and series (see ``across``);
- ``<!-- made -->`` to ``<!-- end -->`` says which code made what is kept;
- ``<!-- brief NAME: PANEL -->`` to ``<!-- end -->`` holds what the paper shows of a panel, in three columns;
- ``<!-- verdicts -->`` to ``<!-- end -->`` says what holds of everything kept, claim by claim, and ``<!-- counts -->``
  how many of every paper's claims became what; of all papers on a page that keeps nothing itself;
- ``NAME.png`` is drawn where the page shows it, and ``NAME.csv`` has every number of the experiment's tables.

``--beside FOLDER`` names another folder, for a page that repeats a table. An experiment is shown where a block or a
link names it. One with tables over all its panels (``overall``) has them from ``RESULTS`` alone, unless its study
says how they are made ``again``; then ``--add`` adds what stands in ``RESULTS`` to the families and seeds that stay.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import JsonValue

from experiments.across import across, places
from experiments.export import comma_separated
from experiments.figure import draw
from experiments.played import added
from experiments.run import Seen
from experiments.stored import panels_of
from experiments.study import Study, study, titles
from experiments.table import brief, table
from experiments.verdicts import FOLDERS, counts, every, table as verdicts
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json, write_atomically
from privbo.protocol.settings import JsonObject
from privbo.runs.sources import load_function

Again: TypeAlias = Callable[[JsonObject], Seen]

_BLOCK = re.compile(
    r"<!-- (?P<kind>table|brief|across|places|verdicts|counts|made)"
    r"(?: (?P<name>[\w-]+))?(?:: (?P<panel>[^>]+?))? -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)


def refresh(results: Path, page: Path, beside: Path | None = None, *, add: bool = False) -> list[str]:
    """Bring one page up to date, with what is kept in a folder of its name or in another; returns what it shows.

    With ``add`` what was found is added to what is kept of experiments that are shown ``again``.

    Raises:
        ConfigurationError: If an experiment it names was never run, or has no such panel.
    """
    text, beside = page.read_text(), beside or page.with_suffix("")
    named = {match["name"] for match in _BLOCK.finditer(text)}
    names = [n for n in titles() if n in named or f"({page.stem}/{_kept(beside, n).stem}." in text]
    if names:
        beside.mkdir(exist_ok=True)
    for name in names:
        _take(results / name, _kept(beside, name), add=add and bool(study(name, "paper").again))
    parts = {match[0]: _part(results, beside, match) for match in _BLOCK.finditer(text)}
    for block, part in parts.items():
        text = text.replace(block, f"{block.splitlines()[0]}\n\n{part}\n\n<!-- end -->")
    for name in names:
        _views(results / name, _kept(beside, name), study(name, "paper"), shown=f"({page.stem}/{{}}.png)", text=text)
    write_atomically(page, text.encode())
    return names


def _kept(beside: Path, name: str) -> Path:
    return beside / f"{name.removeprefix(f'{beside.name}-')}.json"


def _take(found: Path, kept: Path, *, add: bool) -> None:
    if (found / "summary.json").exists():
        summary = read_json(found / "summary.json")
        if add and kept.exists():
            before = read_json(kept)
            summary["overall"] = added(before["overall"], summary["overall"])
            summary["made"] = dict(Counter(before["made"]) + Counter(summary["made"]))
        if "overall" in summary:  # its panels are shown by nobody, and long
            summary = {key: value for key, value in summary.items() if key != "panels"}
        write_atomically(kept, json.dumps(_rounded(summary)).encode())
    if not kept.exists():
        raise ConfigurationError(f"{found} does not exist; run `python -m experiments {found.name} --out {found}`")


def _part(results: Path, beside: Path, match: re.Match[str]) -> str:
    kind, name, asked = match["kind"], match["name"], match["panel"]
    if name is None:
        return _made(beside) if kind == "made" else _judged(kind, beside)
    chosen = study(name, "paper")
    if chosen.overall:
        return _chosen(_overall(results, beside, chosen), asked, name)
    found = panels_of(chosen, read_json(_kept(beside, name)))
    if kind == "brief":
        return "\n\n".join(brief(*one) for one in found if asked in (None, one[0].title))
    if kind in ("across", "places"):
        return across(found, asked) if kind == "across" else places(*found[0], asked)
    return _chosen([table(*one).strip() for one in found], asked, name)


def _judged(kind: str, beside: Path) -> str:
    """Verdicts on the papers of a page, or on all where it keeps nothing itself."""
    judged = every(beside) if beside.name in FOLDERS else every()
    return {"verdicts": verdicts, "counts": counts}[kind](judged)


def _chosen(parts: Sequence[str], asked: str | None, name: str) -> str:
    """The part of a title, or all of them."""
    for part in parts:
        if asked is not None and part.startswith(f"**{asked}**"):
            return part.strip()
    if asked is not None:
        raise ConfigurationError(f"{name} has no panel {asked!r}")
    return "\n\n".join(parts)


def _overall(results: Path, beside: Path, chosen: Study) -> list[str]:
    again = _again(beside, chosen)
    text = (results / chosen.name / "table.md").read_text() if again is None else again.text
    return re.split(r"^(?=\*\*)", text.strip(), flags=re.MULTILINE)


def _again(beside: Path, chosen: Study) -> Seen | None:
    """What is shown over all panels, made from what is kept."""
    return _made_again(chosen.again, _kept(beside, chosen.name).read_bytes()) if chosen.again else None


@lru_cache(maxsize=4)  # a page has several parts of it
def _made_again(again: str, kept: bytes) -> Seen:
    return cast("Again", load_function(again, "again"))(json.loads(kept)["overall"])


def _made(beside: Path) -> str:
    """Code that made what is kept, by experiment."""
    makers: dict[str, list[str]] = {}
    for name in titles():
        if (path := _kept(beside, name)).exists():
            for maker in read_json(path).get("made") or ("not noted",):
                makers.setdefault(maker, []).append(path.stem)
    lines = [f"| {maker} | {', '.join(stems)} |" for maker, stems in sorted(makers.items())]
    return "\n".join(["| made by | experiments |", "|---|---|", *lines])


def _views(found: Path, kept: Path, chosen: Study, *, shown: str, text: str) -> None:
    """The pictures that a page shows, and the numbers as CSV."""
    if chosen.overall:
        if shown.format(kept.stem) in text:
            again = _again(kept.parent, chosen)
            drawn = (found / "figure.png").read_bytes() if again is None else again.pictures["figure"]
            write_atomically(kept.with_suffix(".png"), drawn)
        return
    panels = panels_of(chosen, read_json(kept))
    write_atomically(kept.with_suffix(".csv"), comma_separated(panels).encode())
    for file, picture in chosen.pictures.items():
        path = kept.with_name(f"{kept.stem}.png" if file == "figure" else f"{kept.stem}-{file}.png")
        these = [(panel, rows) for panel, rows in panels if panel.picture == (picture.of or file)]
        if these and shown.format(path.stem) in text:
            write_atomically(path, draw(these, picture, chosen.title.partition(";")[0]))


def _rounded(value: JsonValue) -> JsonValue:
    """Numbers to six digits, so that pages' data stay small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    return [_rounded(inside) for inside in value] if isinstance(value, list) else value


def main() -> int:
    """Refresh the named pages; exit code 2 if something they show is missing."""
    parser = argparse.ArgumentParser(prog="python -m experiments.result_pages", description=__doc__)
    parser.add_argument("results", type=Path, help="folder of the experiments' folders; may be missing")
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--add", action="store_true", help="add to what is kept, in place of replacing it")
    parser.add_argument("--beside", type=Path, help="folder of what is kept, in place of one with the page's name")
    arguments = parser.parse_args()
    try:
        for page in arguments.pages:
            shown = refresh(arguments.results, page, arguments.beside, add=arguments.add)
            sys.stdout.write(f"{page}: {', '.join(shown) or 'shows no table'}\n")
    except (ConfigurationError, FileNotFoundError) as error:
        sys.stderr.write(f"result_pages: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
