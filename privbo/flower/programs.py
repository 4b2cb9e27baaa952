"""Flower's two programs that run for as long as a federation does, with a site's resident among their forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from privbo.flower.answers import answered
from privbo.flower.approval import kept_run
from privbo.flower.forks import start
from privbo.flower.resident import live


def become(program: str, arguments: Sequence[str]) -> NoReturn:
    """Become ``flower-supernode`` or ``flower-superlink``; a site's resident loads its run once.

    Raises:
        ConfigurationError: If it is neither, or Flower is not installed.
        SystemExit: When it ends.
    """
    load = kept_run()
    start(program, arguments, lambda: live(lambda asked: answered(asked, load)))
