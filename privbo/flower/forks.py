"""Flower's processes as forks of one that has imported everything.

A SuperNode starts a process per message and a SuperLink one per run, and each imports Flower, numpy
and this package anew: some four seconds of processor. Started from here, a SuperNode finds
its programs in a folder of small scripts. Such a script asks a process that did all of that before it was
asked for a fork of itself, waits, and ends as the fork ends. Either of the two that is killed takes
the other with it, so from outside it is the process that Flower started. Where no fork is to be had the script
becomes the program itself.

Two more things are forked: the SuperNode, whose process this is, and a process that lives as long as a site is asked
and keeps its settings and data (``resident``). Nothing of the site's is loaded before a fork.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.processes import stir_generators

STARTS = {
    "flower-supernode": ("flower-superexec", "flwr-clientapp"),
    "flower-superlink": ("flower-superexec", "flwr-serverapp"),
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_BRISK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # seconds until a process is asked for
RESIDENT = "privbo-site"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_LONGEST = 1 << 16  # bytes of an order
_ASKING = """import os, socket, sys
name, real, *rest = sys.argv[1:]
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    link.connect({address!r})
    socket.send_fds(link, ["\\0".join([os.getcwd(), name, *rest]).encode()], [0, 1, 2])
except OSError:
    os.execv(real, [real, *rest])
ended = link.recv(1)
sys.exit(ended[0] if ended else 1)
"""

Programs = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, kw_only=True)
class House:
    """Facts that a program and its forks share, in their memory only.

    Attributes:
        folder: Scripts and sockets; for this user alone, and gone with the program.
        token: What a process shows that wants to talk to the site's resident.
        alive: Read end of a pipe that ends with the program.
    """

    folder: Path
    token: bytes
    alive: int

    @property
    def address(self) -> str:
        """Address of the process that is forked."""
        return str(self.folder / "forks")


@dataclass(frozen=True, kw_only=True)
class _Order:
    program: str
    arguments: tuple[str, ...]
    link: socket.socket


_here: list[House] = []  # one at most: set before any fork


def house() -> House | None:
    """Give what this process shares with the program that it was forked for; None in a process of its own."""
    return _here[0] if _here else None


def start(program: str, arguments: Sequence[str], resident: Callable[[], object]) -> NoReturn:
    """Become one of Flower's programs, whose processes are forks.

    Args:
        program: ``flower-supernode`` or ``flower-superlink``.
        arguments: Of the program.
        resident: Lives in a fork of its own where a fork orders ``RESIDENT``.

    Raises:
        ConfigurationError: If it is none of these, or Flower is not installed.
        SystemExit: When it ends.
    """
    if program not in STARTS:
        raise ConfigurationError(f"{program!r} is none of {', '.join(STARTS)}")
    os.environ.update({name: value for name, value in (QUIET | _BRISK).items() if name not in os.environ})
    if sys.platform != "linux" or "--simulation" in arguments:
        _become(program, arguments)
    programs = {**_loaded((program, *STARTS[program])), RESIDENT: resident}
    folder = Path(tempfile.mkdtemp(prefix="privbo-"))
    alive, ends = os.pipe()
    shared = House(folder=folder, token=secrets.token_bytes(32), alive=alive)
    try:
        listener = _listening(shared, STARTS[program])
    except OSError as error:  # a path that is too long for a socket, a file system that runs nothing
        shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(
            f"privbo: {folder} can't be used ({error}), so every round starts processes anew; set TMPDIR\n"
        )
        _become(program, arguments)
    _here.append(shared)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    gc.collect()
    gc.freeze()  # pages that nobody writes to stay shared
    if os.fork():
        listener.close()
        sys.argv = [program, *arguments]
        sys.exit(_code(programs[program]))
    os.close(ends)
    order = _ordered(listener, alive)
    if order is None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    listener.close()
    _carry_out(order, programs)


def order(house: House, name: str, *arguments: str) -> None:
    """Order a fork that nobody waits for; its output is this process's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(house.address)
        socket.send_fds(link, ["\0".join(["/", name, *arguments]).encode()], [0, 1, 2])


def found(name: str) -> str:
    """Find one of Flower's commands, beside this Python or on the path.

    Raises:
        ConfigurationError: If Flower is not installed.
    """
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ConfigurationError(f"{name} is not installed; pip install 'privbo[flower]'")
    return path


def _loaded(names: Sequence[str]) -> Programs:
    commands = importlib.metadata.entry_points(group="console_scripts")
    return {name: commands[name].load() for name in names}


def _become(program: str, arguments: Sequence[str]) -> NoReturn:
    os.execv(found(program), [program, *arguments])  # noqa: S606 (our own arguments)


def _listening(house: House, names: Sequence[str]) -> socket.socket:
    """Write the scripts, and listen for their orders.

    Raises:
        OSError: If the folder is no place for sockets or programs.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(house.address)
    listener.listen()
    # Python without site-packages starts in a hundredth of a second. A shell names it, because a path may have spaces.
    asking = house.folder / "ask.py"
    asking.write_text(_ASKING.format(address=house.address))
    for name in names:
        words = shlex.join([sys.executable, "-IS", str(asking), name, found(name)])
        script = house.folder / name
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        script.chmod(0o700)
        if not os.access(script, os.X_OK):
            raise PermissionError(f"{script} may not be executed")
    return listener


def _ordered(listener: socket.socket, alive: int) -> _Order | None:
    """Wait as the process that is forked: returns in every fork with its order, and with None at the program's end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # it ends with the program
    waiting: list[socket.socket | int] = [listener, alive]
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if alive in ready:
            return None
        with suppress(OSError):
            link, _ = listener.accept()
            if os.fork() == 0:
                return _received(link)
            link.close()


def _received(link: socket.socket) -> _Order:
    said, files, _, _ = socket.recv_fds(link, _LONGEST, 3)
    if len(files) != 3:
        os._exit(1)  # whoever asked is gone
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    where, program, *arguments = said.decode().split("\0")
    os.chdir(where)
    return _Order(program=program, arguments=tuple(arguments), link=link)


def _carry_out(order: _Order, programs: Programs) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stir_generators()
    sys.argv = [order.program, *order.arguments]
    if order.program != RESIDENT:  # nobody waits for that one
        threading.Thread(target=_end_with, args=[order.link], daemon=True).start()
    code = _code(programs[order.program])
    with suppress(OSError):
        order.link.send(bytes([code]))
    sys.exit(code)


def _end_with(link: socket.socket) -> None:
    """End, at once, with the script that stands for this process."""
    if not link.recv(1):
        os.kill(os.getpid(), signal.SIGKILL)


def _code(program: Callable[[], object]) -> int:
    try:
        ended = program()
    except SystemExit as end:
        ended = end.code
    if ended is None or isinstance(ended, int):
        return (ended or 0) & 0xFF
    sys.stderr.write(f"{ended}\n")
    return 1
