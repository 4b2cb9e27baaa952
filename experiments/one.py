"""One resolved experiment as a file, and one cell of it beside what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from experiments.cells import play
from experiments.outcome import Outcome
from experiments.stored import rows_of
from experiments.study import Arm, Panel, Study
from experiments.summary import Row
from experiments.verdicts import RESULTS
from privbo.comparisons.cells import digest
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json
from privbo.protocol.processes import limited_threads
from privbo.protocol.settings import JsonObject, dump_settings

CLOSE = 5e-5  # five digits, to which other machines and versions agree


def resolved(chosen: Study, label: str | None = None) -> str:
    """Give an experiment as JSON, with every table that it uses filled in; of one arm where a label is named."""
    content = dump_settings(chosen, defaults=False)
    if label is not None:
        content["panels"] = [dump_settings(panel, defaults=False) | _only(arm) for panel, arm in _named(chosen, label)]
    return json.dumps(content, indent=2)


def _only(arm: Arm) -> JsonObject:
    return {"arms": [dump_settings(arm, defaults=False)]}


def lines(chosen: Study, label: str | None, seed: int | None) -> Iterator[str]:
    """Play an arm at a seed, on every panel that has it, and say what is stored beside; without a seed only show it.

    Yields:
        Lines of Markdown, or the resolved experiment.

    Raises:
        ConfigurationError: If no panel has such an arm, or its arms are made together.
    """
    if label is None or seed is None:
        yield resolved(chosen, label)
        return
    for panel, arm in _named(chosen, label):
        if panel.collect:
            raise ConfigurationError(f"arms of {panel.title!r} are made together; run the experiment with --seeds")
        with limited_threads(1):
            made = play(arm, panel.arms, seed)
        yield from _beside(panel, label, seed, made, _stored(chosen, panel).get(label))


def _named(chosen: Study, label: str) -> list[tuple[Panel, Arm]]:
    found = [(panel, arm) for panel in chosen.panels for arm in panel.arms if arm.label == label]
    if not found:
        labels = dict.fromkeys(arm.label for panel in chosen.panels for arm in panel.arms)
        raise ConfigurationError(
            f"--arm {label!r} is none of {chosen.name}; choose one of {', '.join(map(repr, labels))}"
        )
    return found


def _stored(chosen: Study, panel: Panel) -> dict[str, Row]:
    """Rows of a panel from the numbers beside the pages; empty where none are kept."""
    for folder in RESULTS.iterdir():
        path = folder / f"{chosen.name.removeprefix(f'{folder.name}-')}.json"
        if path.exists() and panel.title in (panels := read_json(path).get("panels", {})):
            return rows_of(panel, panels[panel.title])
    return {}


def _beside(panel: Panel, label: str, seed: int, made: Outcome, row: Row | None) -> Iterator[str]:
    kept: dict[str, float] = {}
    said = "not stored"
    if row is not None and seed in row.seeds:
        place = row.seeds.index(seed)
        kept = {name: measure.by_seed[place] for name, measure in row.measures.items() if measure.by_seed}
        far = [n for n, value in made.figures.items() if not math.isclose(value, kept.get(n, math.nan), rel_tol=CLOSE)]
        said = f"differs in {', '.join(far)}" if far else "equal to five digits"
        if row.exact and row.exact[place] == digest(made.figures)[:8]:
            said = "bit for bit what is stored"
    yield f"**{panel.title}**: {label}, seed {seed}: {said}"
    yield "| measure | now | stored |"
    yield "|---|---|---|"
    yield from (f"| {name} | {value!r} | {kept.get(name, '-')} |" for name, value in made.figures.items())
