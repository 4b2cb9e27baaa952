"""Put what experiments found onto pages: ``python -m experiments.result_pages RESULTS PAGE [PAGE ...]``.

Between ``<!-- table NAME -->`` and ``<!-- end -->`` a page holds ``RESULTS/NAME/table.md`` as it is, or
the part that begins with ``**PANEL**`` where one is named: ``<!-- table NAME: PANEL -->``. For
every experiment named so, the folder beside the page with the page's name receives the
summary as ``NAME.json``, five digits a number, and, where the page shows it, the
figure as ``NAME.png`` (NAME without the page's name in front).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from pydantic import JsonValue

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json, write_atomically

_BLOCK = re.compile(r"<!-- table (?P<name>[\w-]+)(?:: (?P<panel>[^>]+?))? -->\n.*?<!-- end -->", re.DOTALL)


def refresh(results: Path, page: Path) -> list[str]:
    """Bring one page up to date; returns the experiments it shows.

    Raises:
        ConfigurationError: If an experiment it names was not run into ``results``, or has no such panel.
    """
    names: list[str] = []

    def filled(match: re.Match[str]) -> str:
        names.append(match["name"])
        return f"{match[0].splitlines()[0]}\n\n{_table(results, match['name'], match['panel'])}\n\n<!-- end -->"

    text = _BLOCK.sub(filled, page.read_text())
    beside = page.with_suffix("")
    beside.mkdir(exist_ok=True)
    for name in dict.fromkeys(names):
        short = name.removeprefix(f"{page.stem}-")
        summary = json.dumps(_rounded(read_json(results / name / "summary.json")))
        write_atomically(beside / f"{short}.json", summary.encode())
        if f"({page.stem}/{short}.png)" in text:
            write_atomically(beside / f"{short}.png", (results / name / "figure.png").read_bytes())
    write_atomically(page, text.encode())
    return list(dict.fromkeys(names))


def _table(results: Path, name: str, panel: str | None) -> str:
    path = results / name / "table.md"
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; run `python -m experiments {name} --out {path.parent}`")
    text = path.read_text().strip()
    if panel is None:
        return text
    for part in re.split(r"^(?=\*\*)", text, flags=re.MULTILINE):
        if part.startswith(f"**{panel}**"):
            return part.strip()
    raise ConfigurationError(f"{path} has no panel {panel!r}")


def _rounded(value: JsonValue) -> JsonValue:
    """Numbers to five digits, so that pages' data stay small."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inside) for key, inside in value.items()}
    return [_rounded(inside) for inside in value] if isinstance(value, list) else value


def main() -> int:
    """Refresh the named pages; exit code 2 if something they show is missing."""
    parser = argparse.ArgumentParser(prog="python -m experiments.result_pages", description=__doc__)
    parser.add_argument("results", type=Path, help="folder of the experiments' folders")
    parser.add_argument("pages", type=Path, nargs="+")
    arguments = parser.parse_args()
    try:
        for page in arguments.pages:
            sys.stdout.write(f"{page}: {', '.join(refresh(arguments.results, page)) or 'shows no table'}\n")
    except ConfigurationError as error:
        sys.stderr.write(f"result_pages: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
