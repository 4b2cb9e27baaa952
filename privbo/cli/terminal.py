"""What a person sees in a terminal: a progress bar and short tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def number(value: float | None) -> str:
    """Four significant digits; infinity spelled out."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "infinite"
    return f"{value:.4g}"


def price_table(report: Mapping[str, Any]) -> Table:
    """Epsilon by accountant at the run's delta and at the two deltas every table names."""
    table = Table(title="Price of the plan (epsilon)", title_justify="left")
    table.add_column("accountant")
    columns = report["epsilon_at"]
    for row in columns:
        table.add_column(f"delta={row['delta']:.3g} ({row['label']})", justify="right")
    for accountant in report["epsilon"]:
        table.add_row(accountant, *(number(row["epsilon"].get(accountant)) for row in columns))
    return table


def facts_table(report: Mapping[str, Any]) -> Table:
    """Plan, releases, adjacency, noise source and the ledger's state."""
    table = Table(show_header=False, box=None)
    ledger = report["ledger"]
    state = "verified" if ledger["verified"] else f"NOT VERIFIED: {ledger['problem']}"
    rows = {
        "rounds": str(report["rounds"]),
        "releases charged": f"{report['releases']} of {report['planned_releases']} planned",
        "noise multiplier": number(report["noise_multiplier"]),
        "sample rate": number(report["sample_rate"]),
        "unit of privacy, adjacency": f"{report['unit']}, {report['adjacency']}",
        "noise source": report["noise_source_text"],
        "guaranteed": f"{number(report['guaranteed'])} ({report['because']})",
        "as if non-adaptive, so far": number(report["as_if_non_adaptive"]),
        "ledger": f"{state}, head {ledger['head'][:12]}",
    }
    if report["caveat"] is not None:
        rows["caveat"] = report["caveat"]
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def attacker_line(report: Mapping[str, Any]) -> str:
    """What a guess about one unit improves to, at most."""
    right = report["attacker"]["right_guess"]
    if right is None:
        return f"Nothing limits what can be learnt about a single {report['unit']}."
    asked = "which of two values one reward had" if report["unit"] == "reward" else (
        f"whether one {report['unit']}'s data were used"
    )  # fmt: skip
    words = f"With even odds, a guess {asked} is right at most {_up(right):.1%}"
    return f"{words} of the time (50.0% without this run)."


def _up(share: float) -> float:
    """A share rounded up to tenths of a percent, so that a bound stays one."""
    return min(1.0, math.ceil(1000 * share) / 1000)


def diagnostics_table(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Mean best score over clients at a few points of the run, one row per arm."""
    table = Table(title="Private diagnostics, not covered by epsilon", title_justify="left")
    table.add_column("mean best score over clients")
    for column in next(iter(rows.values())):
        table.add_column(column, justify="right")
    for label, row in rows.items():
        table.add_row(label, *(f"{value:.4f}" for value in row.values()))
    return table


def show(data: Mapping[str, Any]) -> None:
    """Print what a command found: its tables, then its plain lines."""
    console = Console()
    if "audit" in data:
        _print_audit(console, data)
    elif "receipts" in data:
        state = "verified" if data["verified"] else f"NOT VERIFIED: {data['problem']}"
        console.print(f"{data['run']}: {data['entries']} charges, {state}, head {data['head']}", soft_wrap=True)
    elif "plan" in data:
        console.print(price_table(data))
        _print_plan(console, data)
    elif "epsilon_at" in data:
        _print_report(console, data)
    elif "entries" in data:
        console.print(_entries_table(data))
    else:
        _print_calibration(console, data)
    if "report" in data:
        console.print(f"report: {data['report']}", soft_wrap=True)


def _print_report(console: Console, data: Mapping[str, Any]) -> None:
    console.print(f"[bold]{escape(data['name'])}[/bold]")
    console.print(facts_table(data))
    console.print(price_table(data))
    console.print(attacker_line(data), soft_wrap=True)
    if "milestones" in data.get("private_diagnostics", {}):
        console.print(diagnostics_table(data["private_diagnostics"]["milestones"]))


def _entries_table(data: Mapping[str, Any]) -> Table:
    ledger = data["ledger"]
    state = "verified" if ledger["verified"] else f"NOT VERIFIED: {ledger['problem']}"
    table = Table(title=f"{data['run']}: {data['releases']} of {data['planned_releases']} planned, {state}")
    for column in ("charge", "release", "event", "noise", "chain hash"):
        table.add_column(column)
    for entry in data["entries"]:
        table.add_row(
            str(entry["sequence"]), entry["release"], entry["event"], entry["noise_source"], entry["digest"][:12]
        )
    return table


def _print_audit(console: Console, data: Mapping[str, Any]) -> None:
    if "clipping" in data:
        audit = data["clipping"]
        table = Table(title=f"{data['audit']}: {audit['note']}", title_justify="left")
        for column in ("round", "bound", "clipped", "signal", "bias", "noise"):
            table.add_column(column, justify="right")
        for row in audit["rounds"]:
            values = (number(row[name]) for name in ("signal", "bias", "noise"))
            table.add_row(str(row["round"]), number(row["bound"]), f"{row['clipped_share']:.0%}", *values)
        console.print(table)
        for words in audit["warnings"]:
            console.print(f"notice: {words}", soft_wrap=True)
        best = number(audit["best_clipping_norm"])
        console.print(f"S was {number(audit['clipping_norm'])}; {best} had made bias and noise together smallest")
    for row in data["empirical"]:
        verdict = "within the claim" if row["passed"] else "ABOVE THE CLAIM"
        console.print(
            f"{row['event']}, {row['world']}: at epsilon {number(row['epsilon'])} delta measured at least "
            f"{number(row['delta_lower'])}, claimed {number(row['delta_claimed'])}: {verdict}",
            soft_wrap=True,
        )
        bounds = f"{number(row['epsilon_lower'])} (attack) <= epsilon <= {number(row['epsilon_claimed'])} (claim)"
        console.print(f"  {bounds} at delta {number(row['delta'])}, one release", soft_wrap=True)
    if "published_norms" in data:
        norms = data["published_norms"]
        console.print(
            f"published: median norm about {number(norms['median'])} in round {norms['round']}, charge "
            f"{norms['sequence']} of the ledger",
            soft_wrap=True,
        )


def _print_plan(console: Console, data: Mapping[str, Any]) -> None:
    plan = data["plan"]
    console.print(
        f"plan of {data['name']}: {data['rounds']} rounds, {plan['releases']} releases, noise multiplier "
        f"{number(plan['noise_multiplier'])}, {plan['adjacency']} adjacency, noise {plan['noise_source']}; "
        "no data was touched",
        soft_wrap=True,
    )


def _print_calibration(console: Console, data: Mapping[str, Any]) -> None:
    for name in ("rounds", "sample_rate", "noise_multiplier", "delta", "adjacency"):
        console.print(f"{name}: {data[name]}")
    for name, value in data["epsilon"].items():
        console.print(f"epsilon ({name}): {number(value)}")
