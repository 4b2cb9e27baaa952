"""Trials on the command line: which wait, and what they are told, one by one or typed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from accountant.errors import PrivacyError
from privbo.cli.terminal import Shown, render
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.plain import plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.space import Value
from privbo.protocol.table import Table
from privbo.runs.session import Site
from privbo.runs.trials import Trial

_WORDS = {"open": "waits", "told": "told", "failed": "failed"}


@dataclass(frozen=True, kw_only=True)
class Trials:
    """PRIVATE: trials of clients.

    Attributes:
        trials: By number.
        over: Whether the run has ended.
    """

    trials: tuple[Trial, ...]
    over: bool

    def to_dict(self) -> JsonObject:
        """Give them as JSON-able data."""
        return {"trials": [plain(trial) for trial in self.trials], "over": self.over}


def listed(directory: Path, *, client: int | None, everything: bool) -> Trials:
    """PRIVATE: give the trials that wait for a value, or all of them."""
    site = Site(directory)
    found = site.trials(client)
    return Trials(trials=found if everything else tuple(t for t in found if t.state == "open"), over=site.over)


def told(directory: Path, trial: int, value: float | None, failure: str | None) -> Trials:
    """PRIVATE: tell one trial and give it.

    Raises:
        ConfigurationError: If neither or both of value and failure are given.
    """
    if (value is None) == (failure is None):
        raise ConfigurationError("give a value, or --failed REASON")
    site = Site(directory)
    return Trials(trials=(site.tell(trial, value, failure=failure),), over=site.over)


def typed(directory: Path, read: Callable[[str], str], say: Callable[[str], None]) -> Trials:
    """PRIVATE: ask a person for the value of one trial after the other, until the run is over or the input ends.

    Args:
        directory: As of ``Site``.
        read: Prompts for a line; raises EOFError at the end of the input.
        say: Shows a line.
    """
    site, done = Site(directory), []
    say("one number per trial, larger is better; 'failed', with a reason if you like, where there is none; Ctrl-D ends")
    try:
        while waiting := site.ask():
            done.append(_typed(site, waiting[0], read, say))
    except EOFError:
        pass
    return Trials(trials=tuple(done), over=site.over)


def _typed(site: Site, trial: Trial, read: Callable[[str], str], say: Callable[[str], None]) -> Trial:
    while True:
        values = ", ".join(f"{name} = {_value(value)}" for name, value in trial.params.items())
        text = read(f"trial {trial.number} of client {trial.client}: {values} -> ").strip()
        word, _, reason = text.partition(" ")
        try:
            if word == "failed":
                return site.tell(trial, failure=reason.strip() or "no reason given")
            return site.tell(trial, _number(text))
        except PrivacyError as error:
            say(str(error))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no number; type one, such as 0.71, or: failed REASON") from None


def _value(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@render.register
def _trials(found: Trials) -> Iterator[Shown]:
    names = tuple(dict.fromkeys(name for trial in found.trials for name in trial.params))
    head = ("trial", "client", "round", *names, "state", "value")
    rows = [
        (
            t.number,
            t.client,
            t.round,
            *(_value(t.params[name]) if name in t.params else "-" for name in names),
            _WORDS[t.state] if t.failure is None else f"failed: {t.failure}",
            t.value if t.value is not None and math.isfinite(t.value) else None,
        )
        for t in found.trials
    ]
    yield "private: trials belong to their clients; no epsilon covers them"
    if found.trials:
        yield Table(title="Trials", headings=head, rows=rows, right=range(len(head)))
    elif found.over:
        yield "no trial waits: the run is over"
    else:
        yield "no trial waits"
