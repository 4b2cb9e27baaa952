"""A site's process that lives while the site is asked: settings, code and data are loaded once, not once per round.

It is forked by the first question and answers one question at a time to the short-lived processes that Flower starts,
over a socket of this user's with a token that only forks of the same SuperNode have. It keeps nothing that the
site's disk does not: killed at any point, the next question forks another, and a round that was answered gets the
same bytes. It ends with its SuperNode, or after half an hour without a question.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from flwr.app import Context, RecordDict

from privbo.flower.forks import RESIDENT, House, house, order
from privbo.protocol.errors import RunError

_IDLE = 1800  # seconds
_TO_START = 60.0  # seconds
_TO_STOP = 5.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """One message to a site, as Flower hands it to the app.

    Attributes:
        content: Of the message.
        context: This node's settings and the run's.
        home: Folder of the app.
    """

    content: RecordDict
    context: Context
    home: Path


def ask(home: House, asked: Inquiry) -> RecordDict:
    """Ask the site's resident; starts one where none lives.

    Raises:
        RunError: If it ends before it answers.
    """
    site = hashlib.sha256(f"{asked.home.absolute()}\0{asked.context.node_config}".encode()).hexdigest()[:16]
    address = str(home.folder / f"site-{site}")
    try:
        with _connected(home, address) as link:
            link.send(asked)
            answer = link.recv()
    except (EOFError, OSError) as error:
        raise RunError("the site's process ended before it answered") from error
    if not isinstance(answer, RecordDict):
        raise RunError("the site's process gave no answer")
    return answer


def _connected(home: House, address: str) -> Connection:
    with suppress(OSError):
        return Client(address, family="AF_UNIX", authkey=home.token)
    order(home, RESIDENT, address)
    deadline = time.monotonic() + _TO_START
    while True:
        try:
            return Client(address, family="AF_UNIX", authkey=home.token)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def live(answer: Callable[[Inquiry], RecordDict]) -> None:
    """Answer questions until the SuperNode ends, or none comes any more; the address is the program's argument.

    Raises:
        RunError: If this process is no fork of a SuperNode's.
    """
    address, home = sys.argv[1], house()
    if home is None:
        raise RunError(f"{RESIDENT} is started by a SuperNode of `privbo flower supernode`")
    threading.Thread(target=_end_with, args=[home.alive], daemon=True).start()
    with suppress(FileNotFoundError):
        Path(address).unlink()  # of one that was killed
    with Listener(address, family="AF_UNIX", authkey=home.token) as listener:
        while True:
            signal.alarm(_IDLE)
            with suppress(AuthenticationError, EOFError, OSError), listener.accept() as link:
                asked = link.recv()
                signal.alarm(0)
                link.send(answer(asked))


def _end_with(alive: int) -> None:
    """End with the SuperNode: as after Ctrl-C if that is soon, else at once."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_TO_STOP)
    os.kill(os.getpid(), signal.SIGKILL)
