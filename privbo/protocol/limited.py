"""A call in a process of its own, which is killed when its time is up."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn, TypeVar, cast

from privbo.protocol.errors import ConfigurationError

T = TypeVar("T")


class NoAnswerError(Exception):
    """A limited call gave no value: it overran its time, raised, or its process ended."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function in a forked process, and kill that with all of its children when the time is up.

    What the call changes in memory is lost with its process, and global generators are drawn anew in it: two calls that
    draw from one of them would otherwise draw the same.

    Raises:
        NoAnswerError: Saying in words why no value came.
        ConfigurationError: Where processes can't be forked (Windows).

    Example:
        >>> within(60.0, lambda: 1 + 1)
        2
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("a time limit on evaluations needs processes that fork; drop [times] on this system")
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = os.fork()  # not multiprocessing's: the workers of clusters are daemons, which it lets have no children
    if not process:
        _answer(theirs, call)
    theirs.close()
    try:
        if not ours.poll(None if math.isinf(seconds) else seconds):
            raise NoAnswerError(f"TimeoutError: no value within {seconds:.3g} s, which is what was left of its time")
        kind, value = ours.recv()
    except EOFError:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        process = 0
        raise NoAnswerError(f"its process ended with code {code} and gave no value") from None
    finally:
        _end(process)
        ours.close()
    if kind == "error":
        raise NoAnswerError(str(value))
    return cast("T", value)


def _answer(theirs: Connection, call: Callable[[], T]) -> NoReturn:
    """Give the value of the call, or its error's class and text, to the process that waits."""
    try:
        os.setpgid(0, 0)  # of its own, so that its children end with it and the operator's Ctrl-C is not its own
        try:
            stir_generators()
            found: tuple[str, object] = ("value", call())
        except BaseException as error:
            found = ("error", named(error))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        theirs.send(found)
    finally:
        os._exit(0)


def stir_generators() -> None:
    """Draw global generators anew in a fork; Python's own and OpenSSL's see to it themselves."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 (an objective may use it)
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def named(error: BaseException) -> str:
    """An error's class and text; an error may fail to say what it is, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _end(process: int) -> None:
    """End a process and its children, and wait for it; 0 is one that was waited for."""
    if not process:
        return
    for end in (os.killpg, os.kill):  # it may not have a group of its own yet
        with suppress(ProcessLookupError, PermissionError):
            end(process, signal.SIGKILL)
    os.waitpid(process, 0)
