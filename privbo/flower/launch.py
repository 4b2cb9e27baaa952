"""Flower's processes on this machine: a SuperLink, SuperNodes, and the run they play.

Flower on its own reports usage, looks for updates and installs an app's dependencies when
a run starts. Started from here it does none of that: nothing calls out.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from privbo.flower.fork_server import QUIET, STARTS, program_path, start
from privbo.flower.keys import AUTHORITY, CERTIFICATE, KEY
from privbo.flower.party import AppFiles, approve_files, read_party
from privbo.flower.registry import public_spec, read_federation
from privbo.protocol.errors import ConfigurationError, RunError

LOOPBACK = "127.0.0.1"
_TO_LISTEN = 180.0  # seconds
QUIET_NOTE = "Flower's telemetry, its update check and its installing of dependencies at run time are turned off"


@dataclass(kw_only=True)
class Deployment:
    """A SuperLink and SuperNodes on loopback, stopped when the block ends, or this process, even by SIGKILL.

    Attributes:
        root: Folder for logs and for what Flower keeps (one folder per process).
        certificates: Folder of the federation's keys: TLS and node authentication; None is plaintext for trying out.
        environment: Further environment variables of every process.
        forked: Let Flower's processes be forks of one per node; False runs Flower's own commands.
    """

    root: Path
    certificates: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    forked: bool = True
    port: int = field(default_factory=lambda: free_port(), init=False)  # noqa: PLW0108 (defined below)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    watchers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Host and port of the SuperLink."""
        return f"{LOOPBACK}:{self.port}"

    def start_superlink(self, *options: str) -> None:
        """Start the SuperLink, with further options, and wait until it listens.

        Raises:
            RunError: If the SuperLink does not listen in time.
        """
        arguments = ["--host", LOOPBACK, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        if self.certificates is None:
            arguments.append("--insecure")
        else:
            files = {"--ssl-ca-certfile": AUTHORITY, "--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY}
            arguments += [word for option, file in files.items() for word in (option, str(self.certificates / file))]
            # Registered keys outlive the process.
            database = str(self._home("superlink") / "superlink.sqlite")
            arguments += ["--enable-supernode-auth", "--database", database]
        process = self.start("superlink", ["flower-superlink", *arguments, *options])
        deadline = time.monotonic() + _TO_LISTEN
        while not self._listens():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"the SuperLink did not start; see {self.log('superlink')}")
            time.sleep(0.1)

    def start_supernode(self, name: str, party: Path, *, key: Path | None = None, config: str = "") -> None:
        """Start one site's or guardian's SuperNode.

        Args:
            name: Of the process and its log.
            party: The site's ``site.toml``, or the guardian's ``guardian.toml``.
            key: The site's private key, together with certificates.
            config: Further entries of the node config.
        """
        arguments = ["--superlink", self.address, "--host", LOOPBACK, "--port", str(free_port())]
        arguments += ["--node-config", f'{party.stem}="{party.absolute()}" {config}'.strip()]
        if self.certificates is None:
            arguments.append("--insecure")
        else:
            arguments += ["--root-certificates", str(self.certificates / AUTHORITY)]
        if key is not None:
            arguments += ["--auth-supernode-private-key", str(key)]
        self.start(name, ["flower-supernode", *arguments])

    def flwr(
        self, *arguments: str, timeout: float | None = None, show: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the ``flwr`` command against this SuperLink; its last argument is the connection's name.

        Args:
            arguments: Without the connection.
            timeout: Seconds after which it is killed, or None.
            show: Let it write to this terminal instead of into the result.
        """
        home = self._home("flwr")
        connection = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self.address}"\n'
        if self.certificates is None:
            connection += "insecure = true\n"
        else:
            connection += f'root-certificates = "{(self.certificates / AUTHORITY).absolute()}"\n'
        (home / "config.toml").write_text(connection)
        return subprocess.run(  # noqa: S603 (our own arguments)
            [program_path("flwr"), *arguments, "local"],
            env=self._environment("flwr"),
            capture_output=not show,
            text=True,
            check=False,
            timeout=timeout,
        )

    def play(self, app: Path, *options: str, timeout: float | None = None, show: bool = False) -> None:
        """Start the app's run and wait for its end; ``options`` go to ``flwr run``.

        Raises:
            RunError: If the run does not end well.
        """
        done = self.flwr("run", "--stream", *options, str(app), timeout=timeout, show=show)
        if done.returncode:
            raise RunError(f"flwr run failed: {done.stdout or ''}{done.stderr or ''}")
        listed = self.flwr("ls", "--format", "json", timeout=180)
        last = max(json.loads(listed.stdout)["runs"], key=lambda run: run["pending-at"])
        if last["status"] != "finished:completed":
            raise RunError(f"the run ended as {last['status']}: {last['status-details']}; see {self.log('superlink')}")

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to its log; Flower's own start theirs as forks."""
        program, *arguments = command
        starts = [program_path(program)]
        if self.forked and program in STARTS:
            starts = [sys.executable, "-m", "privbo.cli", "flower", program.removeprefix("flower-")]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 (our own arguments)
                [*starts, *arguments],
                env=self._environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes[name] = process  # first: without a watcher it is stopped with the others
        self.watchers[name] = _watched(process)
        return process

    def log(self, name: str) -> Path:
        """Path of a process's log."""
        return self.root / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a process and its children at once (SIGKILL)."""
        process, watcher = self.processes.pop(name), self.watchers.pop(name, None)
        if watcher is not None:
            watcher.kill()  # first: the number of a process that has ended may become another's
            watcher.communicate()
        _signal(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ask every process to end, the SuperLink last, and kill those that do not."""
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            _signal(self.processes[name], signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(timeout=10)
            self.kill(name)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def _home(self, name: str) -> Path:
        # Each its own, because nodes that share one install the app into each other's way.
        home = self.root / "flower" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        # Flower's processes start one another by name and Python finds this package by its path.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        home = {"FLWR_HOME": str(self._home(name)), "PATH": path}
        return {**os.environ, **QUIET, **home, **self.environment}


def play_locally(home: Path) -> None:
    """Play an app's run with one SuperNode per site, all on this machine, and stop them again.

    Args:
        home: Folder of the app; one SuperNode is started for every site that its ``federation.toml`` registers.

    Raises:
        ConfigurationError: If the settings are impossible.
        RunError: If the run does not end well; the same call goes on with it.
    """
    federation = read_federation(home).checked(public_spec(home).problem.n_clients)
    if federation.has_keys:
        raise ConfigurationError("federation.toml names public keys; an app to try out has none (docs/deployment.md)")
    parties = approve_here(home)
    with Deployment(root=home / "flower") as deployment:
        deployment.start_superlink()
        for path in parties:
            deployment.start_supernode(path.parent.name, path)
        deployment.play(home, show=True)


def become(program: str, arguments: Sequence[str]) -> NoReturn:
    """Become ``flower-supernode`` or ``flower-superlink``; a site's own process loads its run once.

    A SuperNode and all that it starts find modules in its working directory, as ``check`` and ``approve`` do.

    Raises:
        ConfigurationError: If it is neither, or Flower is not installed.
        SystemExit: When it ends.
    """
    from privbo.flower.answers import answered

    if program == "flower-supernode":
        here = str(Path.cwd())
        sys.path.insert(0, here)  # of forks; other processes read the environment
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    start(program, arguments, answered)


def approve_here(home: Path) -> list[Path]:
    """Pin an app's files in the settings of all its parties on this machine, whose owner is all of them; their files.

    Raises:
        ConfigurationError: If a party's settings are missing.
    """
    federation, files = read_federation(home), AppFiles.read(home)
    parties = [home / "sites" / name / "site.toml" for name in federation.sites]
    parties += [home / "guardians" / name / "guardian.toml" for name in federation.guardians]
    if missing := [path for path in parties if not path.exists()]:
        raise ConfigurationError(
            f"{missing[0]} is missing, and with it what the party allows; write it with name, directory and [policy] "
            "(epsilon and delta), as privbo flower init does"
        )
    for path in parties:
        approve_files(path, read_party(path), files)
    return parties


def free_port() -> int:
    """Find a free port of loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _watched(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Start a shell that kills a process and its children once the pipe to this one is closed, however it ends."""
    # Not `kill -9 --`, which dash does not read.
    words = ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(process.pid)]
    return subprocess.Popen(  # noqa: S603 (our own words)
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
