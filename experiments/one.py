"""One resolved experiment as a file, and cells that are played again beside what is stored of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from experiments.cells import Collect, Context, play
from experiments.played import Entry, read
from experiments.stored import rows_of
from experiments.study import Arm, Panel, Study, study
from experiments.summary import Row
from experiments.verdicts import RESULTS
from privbo.comparisons.cells import digest
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json
from privbo.protocol.processes import limited_threads
from privbo.protocol.settings import JsonObject, dump_settings
from privbo.runs.sources import load_function

CLOSE = 5e-5  # five digits, to which other machines and versions agree


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is stored of a cell.

    Attributes:
        figures: By name, with five digits or more.
        exact: Digest of all figures before they were rounded; empty where none was noted.
    """

    figures: Mapping[str, float]
    exact: str = ""


@dataclass(frozen=True, kw_only=True)
class Again:
    """A cell that was played again.

    Attributes:
        name: The experiment.
        panel: Title of the panel.
        label: Of the arm.
        seed: Of the cell.
        figures: What it gives now, by name.
        kept: What is stored of it; None where it is not.
    """

    name: str
    panel: str
    label: str
    seed: int
    figures: Mapping[str, float]
    kept: Kept | None

    @property
    def differing(self) -> list[str]:
        """Names of stored figures that are not equal to five digits."""
        stored = {} if self.kept is None else self.kept.figures
        both = [(name, value, stored[name]) for name, value in self.figures.items() if name in stored]
        return [name for name, now, then in both if not math.isclose(now, then, rel_tol=CLOSE)]

    @property
    def said(self) -> str:
        """How far the cell is what is stored."""
        if self.kept is None:
            return "not stored"
        if self.kept.exact == digest(dict(self.figures))[:8]:
            return "bit for bit what is stored"
        return f"differs in {', '.join(self.differing)}" if self.differing else "equal to five digits"


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
        one = again(chosen.name, panel, arm, seed)
        stored = {} if one.kept is None else one.kept.figures
        yield f"**{panel.title}**: {label}, seed {seed}: {one.said}"
        yield "| measure | now | stored |"
        yield "|---|---|---|"
        yield from (f"| {name} | {value!r} | {stored.get(name, '-')} |" for name, value in one.figures.items())


def _named(chosen: Study, label: str) -> list[tuple[Panel, Arm]]:
    found = [(panel, arm) for panel in chosen.panels for arm in panel.arms if arm.label == label]
    if not found:
        labels = dict.fromkeys(arm.label for panel in chosen.panels for arm in panel.arms)
        raise ConfigurationError(
            f"--arm {label!r} is none of {chosen.name}; choose one of {', '.join(map(repr, labels))}"
        )
    return found


def again(name: str, panel: Panel, arm: Arm, seed: int) -> Again:
    """Play a cell of an experiment again.

    Raises:
        ConfigurationError: If the panel's arms are made together, this one too.
    """
    if panel.collect and "model" not in arm.options:
        raise ConfigurationError(f"arms of {panel.title!r} are made together; run the experiment with --seeds")
    with limited_threads(1):
        # As numbers that went through a file: an integer's digest is another one than its float's.
        figures = {name: float(value) for name, value in play(arm, panel.arms, seed).figures.items()}
    kept = stored(name, panel).get(arm.label, {}).get(seed)
    return Again(name=name, panel=panel.title, label=arm.label, seed=seed, figures=figures, kept=kept)


def stored(name: str, panel: Panel) -> dict[str, dict[int, Kept]]:
    """Give the stored cells of a panel by label and seed, from the numbers beside the pages; families keep two."""
    for folder in (*RESULTS.iterdir(), RESULTS.parent / "scale"):
        path = folder / f"{name.removeprefix(f'{folder.name}-')}.json"
        content = read_json(path) if path.exists() else {}
        if panel.title in (panels := content.get("panels", {})):
            return {label: _of_row(row) for label, row in rows_of(panel, panels[panel.title]).items()}
        if "entries" in (family := content.get("overall", {}).get(panel.title, {})):
            (played,) = read({panel.title: family})
            return {label: _of_entry(entry) for label, entry in played.entries.items()}
    return {}


def _of_row(row: Row) -> dict[int, Kept]:
    measures = {name: measure.by_seed for name, measure in row.measures.items() if measure.by_seed}
    found = {}
    for place, seed in enumerate(row.seeds):
        figures = {name: values[place] for name, values in measures.items() if len(values) == len(row.seeds)}
        found[seed] = Kept(figures=figures, exact=row.exact[place] if row.exact else "")
    return found


def _of_entry(entry: Entry) -> dict[int, Kept]:
    triples = zip(entry.seeds, entry.mean, entry.end, strict=True)
    return {seed: Kept(figures={"mean": mean, "end": end}) for seed, mean, end in triples}


def every(names: Iterable[str]) -> Iterator[Again]:
    """Play one cell of every panel that is stored again: the last seed of the last arm that can be played by itself.

    Where a panel's arms are all made together all of it is played, on the seeds that are stored.
    """
    for name in names:
        for panel in study(name, "paper").panels:
            kept = stored(name, panel)
            arms = [arm for arm in panel.arms if arm.label in kept and (not panel.collect or "model" in arm.options)]
            if arms:
                yield again(name, panel, arms[-1], max(kept[arms[-1].label]))
            elif kept and not panel.arms:
                yield _together(name, panel, kept)


def _together(name: str, panel: Panel, kept: Mapping[str, Mapping[int, Kept]]) -> Again:
    label, cells = next(iter(kept.items()))
    seeds = range(min(cells), max(cells) + 1)
    collect = cast("Collect", load_function(panel.collect, "collect"))
    with limited_threads(1):
        found = collect(Context(panel=panel, seeds=seeds, out=Path()))
    figures = found[label][seeds[-1]].figures
    return Again(name=name, panel=panel.title, label=label, seed=seeds[-1], figures=figures, kept=cells[seeds[-1]])


def table(cells: Iterable[Again]) -> Iterator[str]:
    """Give cells that were played again as a table, row by row as they are made."""
    yield "| experiment | panel | arm | seed | measure | now | stored | |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in cells:
        if one.kept is not None:
            measure = next(name for name in one.kept.figures if name in one.figures)
            numbers = f"{measure} | {one.figures[measure]:.6g} | {one.kept.figures[measure]:.6g}"
            yield f"| {one.name} | {one.panel} | {one.label} | {one.seed} | {numbers} | {one.said} |"
