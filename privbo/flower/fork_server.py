"""Fork server: Flower's processes, and a site's own, as forks of one process that has imported everything.

A SuperNode starts a process per message and a SuperLink one per run, and each imports Flower, numpy and this package
anew: some four seconds of processor. Started from here, a SuperNode finds its programs in a folder of small scripts.
Such a script asks the fork server for a fork, waits, and ends as the fork ends. Either of the two that is killed takes
the other with it, so from outside it is the process that Flower started. Where no fork is to be had the script becomes
the program itself.

Two more things are forked: the SuperNode, whose process this is, and a process that answers a site's questions one at a
time and keeps its settings, code and data. Nothing of the site's is loaded before a fork. The first question forks the
site's process; short-lived processes reach it over a socket of this user's, with a token that only forks of the same
SuperNode have. It keeps nothing that the site's disk does not: killed at any point, the next question forks another,
and a round that was answered gets the same bytes. It ends with its SuperNode, or after half an hour without a question.
"""

from __future__ import annotations

import gc
import hashlib
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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.processes import stir_generators

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict

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
_SITE = "privbo-site"
_IDLE, _TO_START, _TO_STOP = 1800, 60.0, 5.0  # seconds
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

Answers: TypeAlias = "Callable[[RecordDict, Context, Path], RecordDict]"


@dataclass(frozen=True, kw_only=True)
class ForkServer:
    """Facts that a program and its forks share, in their memory only.

    Attributes:
        folder: Scripts and sockets; for this user alone, and gone with the program.
        token: What a process shows that wants to talk to the site's own.
        alive: Read end of a pipe that ends with the program.
    """

    folder: Path
    token: bytes
    alive: int

    @property
    def address(self) -> str:
        """Address of the process that is forked."""
        return str(self.folder / "forks")

    def ask(self, content: RecordDict, context: Context, home: Path) -> RecordDict:
        """Ask the site's process; starts one where none lives.

        Args:
            content: Of the message to the site.
            context: This node's settings and the run's.
            home: Folder of the app.

        Raises:
            RunError: If it ends before it answers.
        """
        site = hashlib.sha256(f"{home.absolute()}\0{context.node_config}".encode()).hexdigest()[:16]
        try:
            with self._connected(str(self.folder / f"site-{site}")) as link:
                link.send((content, context, home))
                answer: RecordDict = link.recv()
        except (EOFError, OSError) as error:
            raise RunError("the site's process ended before it answered") from error
        return answer

    def _connected(self, address: str) -> Connection:
        ordered, deadline = False, time.monotonic() + _TO_START
        while True:
            try:
                return Client(address, family="AF_UNIX", authkey=self.token)
            except OSError:
                if time.monotonic() > deadline:
                    raise
            if not ordered:  # no process waits for that fork
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
                    link.connect(self.address)
                    socket.send_fds(link, ["\0".join(["/", _SITE, address]).encode()], [0, 1, 2])
                ordered = True
            time.sleep(0.02)

    def answer_until_idle(self, answer: Answers) -> None:
        """Answer a site's questions until the program ends, or none comes any more; the address is an argument."""
        address = sys.argv[1]
        threading.Thread(target=self._end_with_program, daemon=True).start()
        with suppress(FileNotFoundError):
            Path(address).unlink()  # of one that was killed
        with Listener(address, family="AF_UNIX", authkey=self.token) as listener:
            while True:
                signal.alarm(_IDLE)
                with suppress(AuthenticationError, EOFError, OSError), listener.accept() as link:
                    asked = link.recv()
                    signal.alarm(0)
                    link.send(answer(*asked))

    def _end_with_program(self) -> None:
        """End with the program: as after Ctrl-C if that is soon, else at once."""
        os.read(self.alive, 1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(_TO_STOP)
        os.kill(os.getpid(), signal.SIGKILL)

    def listen(self, names: Sequence[str]) -> socket.socket:
        """Write the scripts of some programs, and listen for their orders.

        Raises:
            OSError: If the folder is no place for sockets or programs.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.address)
        listener.listen()
        # Python without site-packages starts in a hundredth of a second. A shell names it: a path may have spaces.
        asking = self.folder / "ask.py"
        asking.write_text(_ASKING.format(address=self.address))
        for name in names:
            words = shlex.join([sys.executable, "-IS", str(asking), name, program_path(name)])
            script = self.folder / name
            script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            script.chmod(0o700)
            if not os.access(script, os.X_OK):
                raise PermissionError(f"{script} may not be executed")
        return listener

    def serve(self, listener: socket.socket) -> socket.socket | None:
        """Wait as the process that is forked: returns in every fork with its order, with None at the program's end."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for a fork
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # it ends with the program
        waiting: list[socket.socket | int] = [listener, self.alive]
        while True:
            ready, _, _ = select.select(waiting, [], [])
            if self.alive in ready:
                return None
            with suppress(OSError):
                link, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    return link
                link.close()


_here: list[ForkServer] = []  # one at most: set before any fork


def fork_server() -> ForkServer | None:
    """Give the server that this process was forked from; None in a process of its own."""
    return _here[0] if _here else None


def start(program: str, arguments: Sequence[str], answer: Answers) -> NoReturn:
    """Become one of Flower's programs, whose processes are forks.

    Args:
        program: ``flower-supernode`` or ``flower-superlink``.
        arguments: Of the program.
        answer: Answers a site's question, in the site's own process.

    Raises:
        ConfigurationError: If it is none of these, or Flower is not installed.
        SystemExit: When it ends.
    """
    if program not in STARTS:
        raise ConfigurationError(f"{program!r} is none of {', '.join(STARTS)}")
    os.environ.update({name: value for name, value in (QUIET | _BRISK).items() if name not in os.environ})
    if sys.platform != "linux" or "--simulation" in arguments:
        _become(program, arguments)
    commands = importlib.metadata.entry_points(group="console_scripts")
    programs = {name: commands[name].load() for name in (program, *STARTS[program])}
    folder = Path(tempfile.mkdtemp(prefix="privbo-"))
    alive, ends = os.pipe()
    server = ForkServer(folder=folder, token=secrets.token_bytes(32), alive=alive)
    try:
        listener = server.listen(STARTS[program])
    except OSError as error:  # a path that is too long for a socket, a file system that runs nothing
        shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(
            f"privbo: {folder} can't be used ({error}), so every round starts processes anew; set TMPDIR\n"
        )
        _become(program, arguments)
    _here.append(server)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    gc.collect()
    gc.freeze()  # pages that are never written to stay shared
    if os.fork():
        listener.close()
        sys.argv = [program, *arguments]
        sys.exit(_code(programs[program]))
    os.close(ends)
    link = server.serve(listener)
    if link is None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    _carry_out(link, {**programs, _SITE: lambda: server.answer_until_idle(answer)})


def program_path(name: str) -> str:
    """Find one of Flower's commands, next to this Python or on the path.

    Raises:
        ConfigurationError: If Flower is not installed.
    """
    own = Path(sys.executable).parent / name
    path = str(own) if own.exists() else shutil.which(name)
    if path is None:
        raise ConfigurationError(f"{name} is not installed; pip install 'privbo[flower]'")
    return path


def _become(program: str, arguments: Sequence[str]) -> NoReturn:
    os.execv(program_path(program), [program, *arguments])  # noqa: S606 (our own arguments)


def _carry_out(link: socket.socket, programs: Mapping[str, Callable[[], object]]) -> NoReturn:
    """Be the program that a script, or a fork in need of the site's process, has ordered."""
    order, files, _, _ = socket.recv_fds(link, _LONGEST, 3)
    if len(files) != 3:
        os._exit(1)  # the process that asked is gone
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    folder, program, *arguments = order.decode().split("\0")
    os.chdir(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stir_generators()
    sys.argv = [program, *arguments]
    if program != _SITE:  # no script waits for that one
        threading.Thread(target=_end_with_script, args=[link], daemon=True).start()
    code = _code(programs[program])
    with suppress(OSError):
        link.send(bytes([code]))
    sys.exit(code)


def _end_with_script(link: socket.socket) -> None:
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
