"""Studies that take the panels of others: ``like`` names their arms by what a panel uses, ``leave`` drops some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

Table: TypeAlias = dict[str, object]


def with_panels(table: Table, content: Mapping[str, Table]) -> Table:
    """Give an experiment's table with the panels of those that it is ``like``, with the arms that their uses name."""
    if "like" not in table:
        return table
    found: list[Table] = []
    left_out = cast("Mapping[str, list[str]]", table.get("leave", {}))
    for name, by_use in cast("Mapping[str, Mapping[str, list[object]]]", table["like"]).items():
        for panel in cast("list[Table]", content[name]["panels"]):
            uses = {*names_used(panel), *names_used(cast("Table", panel.get("problem", {})))}
            arms = [arm for use, arms in by_use.items() if use in uses for arm in arms]
            gone = {arm for use, arms in left_out.items() if use in uses for arm in arms}
            if kept := [arm for arm in arms if arm not in gone]:
                found.append(panel | {"arms": kept})
    return {key: value for key, value in table.items() if key not in ("like", "leave")} | {"panels": found}


def names_used(table: Table) -> list[str]:
    """Give the names of the shared tables that a table uses."""
    use = table.get("use", [])
    return [use] if isinstance(use, str) else cast("list[str]", use)
