"""Cells: one arm at one seed, run in parallel, kept as they finish, never run twice.

A cell's file is named by a hash of what is run, whatever it is called and whoever asks for it, and of the code
that runs it: experiments share cells, an interrupted one goes on, and no result of older code is taken
for today's. Where only finished cells are shown, older ones are too, and the version that made them is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias, cast

from rich.console import Console
from rich.progress import Progress

import privbo as pb
from experiments.outcome import Outcome, Player, Task, named_delta, world
from experiments.study import Arm, Panel, merged
from privbo.comparisons.cells import Cell, CellResult, complete, digest
from privbo.protocol.messages import Algorithm
from privbo.protocol.settings import JsonObject, dump_settings, read_settings
from privbo.runs.code import CODE, CodeKey, code_key
from privbo.runs.offer import always
from privbo.runs.sources import ForeignAlgorithm, algorithm_table, algorithms, load_function, read_algorithm
from privbo.runs.spec import read_privacy

Found: TypeAlias = dict[str, dict[int, Outcome]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """A panel about to be run.

    Attributes:
        panel: Its arms.
        seeds: Seeds of every arm.
        out: Folder of the experiment; cells stand beside it.
        jobs: Parallel processes.
        finished: Run nothing, read what is finished.
        older: Versions that made cells of older code, counted as they are read.
        made: The same of all cells, with the first digits of the toolkit's digest.
    """

    panel: Panel
    seeds: range
    out: Path
    jobs: int = 1
    finished: bool = False
    older: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)

    def outcomes(self) -> Found:
        """Run what is missing and give all outcomes by label and seed.

        With ``finished`` nothing is run, and arms with fewer than two finished cells are left out.
        """
        arms = [(arm, priced(arm, self.panel.arms)) for arm in self.panel.arms]
        cells = [self._cell(*arm, seed) for seed in self.seeds for arm in arms if self._due(arm[0], seed)]
        with Progress(console=Console(stderr=True), disable=self.finished) as bar:
            task = bar.add_task(self.panel.title, total=len(cells))
            kept, _ = complete(
                cells,
                jobs=self.jobs,
                finished=self.finished,
                on_cell=lambda *_: bar.advance(task),
                on_reuse=lambda reuse, _: None if self.finished else bar.console.print("; ".join(reuse.lines())),
            )
        self.older.update(one.made_by for one in kept if one is not None and not one.is_current)
        self.made.update(f"{one.made_by}, code {one.code.parts[CODE][:8]}" for one in kept if one is not None)
        found: Found = {}
        for cell, one in zip(cells, kept, strict=True):
            if one is not None:
                outcome = read_settings(Outcome, one.result.extra, one.name)
                found.setdefault(cell.label, {})[cell.seed] = outcome
        return {label: runs for label, runs in found.items() if len(runs) > 1 or not self.finished}

    def _due(self, arm: Arm, seed: int) -> bool:
        return arm.seeds is None or seed < self.seeds.start + arm.seeds

    def _cell(self, arm: Arm, privacy: JsonObject, seed: int) -> Cell:
        said = [arm.play, arm.problem, arm.rounds, arm.algorithm, privacy, arm.control, arm.options, seed]
        return Cell(
            label=arm.label,
            seed=seed,
            settings=digest(said),
            code=_code(arm.play, str(arm.problem["type"])),
            folder=self.out.parent / "cells",
            work=partial(_work, arm, privacy, seed),
        )


@cache
def _code(play: str, problem: str) -> CodeKey:
    return code_key(play, problem)


def play(arm: Arm, arms: Sequence[Arm], seed: int) -> Outcome:
    """Play an arm of a panel at a seed, as its cell does."""
    return _play(arm, priced(arm, arms), seed)


def _work(arm: Arm, privacy: JsonObject, seed: int) -> CellResult:
    return CellResult(curves={}, extra=dump_settings(_play(arm, privacy, seed)))


def _play(arm: Arm, privacy: JsonObject, seed: int) -> Outcome:
    player = cast("Player", load_function(arm.play, "play"))
    task = Task(
        problem=arm.problem,
        algorithm=algorithm_of(arm.algorithm) if arm.algorithm else None,
        privacy=privacy_of(privacy),
        control=arm.control,
        rounds=arm.rounds,
        seed=seed,
        options=arm.options,
    )
    return player(task)


def algorithm_of(table: JsonObject) -> Algorithm:
    """Make an algorithm: ``type``, perhaps a ``preset``, what departs from it; ``local`` shares nothing.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.

    Example:
        >>> algorithm_of({"type": "fed-pne", "preset": "heuristic"}).cap
        8
    """
    plain: Mapping[str, object] = {key: value for key, value in table.items() if key not in ("preset", "local")}
    if preset := table.get("preset"):
        name = str(table["type"])
        kind = load_function(name, "algorithm.type") if ":" in name else algorithms()[name]
        start = getattr(kind, str(preset))()
        plain = merged(algorithm_table(start), plain)
    found = read_algorithm(plain)
    found = found.load() if isinstance(found, ForeignAlgorithm) else found
    # Studies show what an algorithm does, also where it would leave a release out; these two always did so.
    found = found if "release_when" in table or table["type"] in ("shared-prior", "multi-task") else always(found)
    return found.local() if table.get("local", False) else found


def privacy_of(table: JsonObject) -> pb.Privacy | pb.NoPrivacy:
    """Make the privacy of a run; an empty table is none."""
    return read_privacy(table or {"none": True})


def priced(arm: Arm, arms: Sequence[Arm]) -> JsonObject:
    """Give an arm's privacy; ``price_of`` becomes the tight epsilon, at N^-1.1, of the arm of that label."""
    table = dict(arm.privacy)
    if (label := table.pop("price_of", None)) is not None:
        other = next(one for one in arms if one.label == label)
        table["epsilon"] = round(_tight(other), 3)
    return table


def _tight(arm: Arm) -> float:
    problem = world(arm.problem, 0).problem()
    with named_delta():
        terms = pb.plan(problem, algorithm_of(arm.algorithm), privacy=privacy_of(arm.privacy), rounds=arm.rounds)
    return terms.epsilon(pb.paper_delta(problem.n_clients))["tight"]


Collect: TypeAlias = Callable[[Context], Found]
