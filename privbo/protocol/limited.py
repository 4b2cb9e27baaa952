"""A call in a process of its own, which is killed when its time is up."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from privbo.protocol.errors import ConfigurationError

T = TypeVar("T")


class NoAnswerError(Exception):
    """A limited call gave no value: it overran its time, raised, or its process ended."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function in a forked process, and kill that with all of its children when the time is up.

    What the call changes in memory is lost with its process.

    Raises:
        NoAnswerError: Saying in words why no value came.
        ConfigurationError: Where processes can't be forked (Windows).

    Example:
        >>> within(60.0, lambda: 1 + 1)
        2
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigurationError("a time limit on evaluations needs processes that fork; drop [times] on this system")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, call))
    process.start()
    theirs.close()
    try:
        if not ours.poll(None if math.isinf(seconds) else seconds):
            raise NoAnswerError(f"TimeoutError: no value within {seconds:.3g} s, which is what was left of its time")
        kind, value = ours.recv()
    except EOFError:
        process.join()
        raise NoAnswerError(f"its process ended with code {process.exitcode} and gave no value") from None
    finally:
        _end(process.pid)
        process.join()
        ours.close()
    if kind == "error":
        raise NoAnswerError(str(value))
    return cast("T", value)


def _answer(theirs: Connection, call: Callable[[], T]) -> None:
    """Give the value of the call, or its error's class and text, to the process that waits."""
    os.setpgid(0, 0)  # of its own, so that its children end with it and the operator's Ctrl-C is not its own
    try:
        found: tuple[str, object] = ("value", call())
    except BaseException as error:
        found = ("error", named(error))
    theirs.send(found)
    theirs.close()


def named(error: BaseException) -> str:
    """An error's class and text; an error may fail to say what it is, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _end(process: int | None) -> None:
    if process is None:
        return
    for end in (os.killpg, os.kill):  # it may not have a group of its own yet
        with suppress(ProcessLookupError, PermissionError):
            end(process, signal.SIGKILL)
