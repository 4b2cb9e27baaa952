"""A real PostgreSQL on loopback for tests: its own folder, its own user, killed and set back at will."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from accountant.errors import LedgerError
from accountant.ledger.address import place_of
from accountant.ledger.ledger import Ledger
from accountant.ledger.policy import LedgerPolicy, canonical
from accountant.ledger.postgres import make
from tests.system_tools import require_tool

SECRET = "not-a-secret-of-anybodys"  # noqa: S105 (of a server that ends with the test)
PASSFILE = Path(tempfile.mkdtemp(prefix="privbo-pgpass-")) / "pgpass"
PASSFILE.write_text(f"*:*:*:*:{SECRET}\n")
PASSFILE.chmod(0o600)
os.environ["PGPASSFILE"] = str(PASSFILE)  # tests' own, for whatever they start

ADDRESSES = ("127.0.0.1", "127.0.0.2")  # the second is treated as another machine


def found(name: str) -> str:
    """Path of one of PostgreSQL's programs, which Debian keeps off the path."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if beside:
        return str(beside[-1])
    require_tool(name)
    return str(shutil.which(name))


class Server:
    """One server, one database, an owner and a role that appends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="privbo-pg-", dir="/tmp"))
        self.user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.owner = {"user": self.user, "group": self.user, "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder.chmod(0o711)
        self._own(self.folder)
        with socket.socket() as probe:
            probe.bind((ADDRESSES[0], 0))
            self.port = probe.getsockname()[1]
        self.data = self.folder / "data"
        password = self.folder / "password"
        password.write_text(SECRET)
        self._own(password)
        options = ["-A", "scram-sha-256", f"--pwfile={password}", "-U", "owner", "-E", "UTF8", "--no-locale", "-N"]
        command = [found("initdb"), "-D", str(self.data), *options]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd="/", timeout=120, **self.owner)
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = '{','.join(ADDRESSES)}'\nport = {self.port}\n")
            file.write(f"unix_socket_directories = '{self.folder}'\nmax_connections = 40\nshared_buffers = 16MB\n")
        self.start()
        with self.owning() as owner:
            owner.execute(f"CREATE ROLE appender LOGIN PASSWORD '{SECRET}'")
            owner.execute(f"CREATE ROLE keeper LOGIN CREATEDB PASSWORD '{SECRET}'")

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(path, self.user)

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            command = [found("postgres"), "-D", str(self.data)]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True, **self.owner
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.owning().close()
            except psycopg.Error:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill -9 the server with all of its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Stop it in order."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def remove(self) -> None:
        """End it and take its folder away."""
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def copied(self) -> Path:
        """A copy of the stopped server's data."""
        copy = self.folder / "copy"
        subprocess.run(["cp", "-a", self.data, copy], check=True)  # with its owner
        return copy

    def set_back(self, copy: Path) -> None:
        """Put a copy in the data's place."""
        shutil.rmtree(self.data)
        copy.rename(self.data)

    def encrypt(self, certificate: Path | None, key: Path | None) -> None:
        """Offer TLS with a certificate, or none."""
        with self.owning() as owner:
            for name, file in (("ssl_cert_file", certificate), ("ssl_key_file", key)):
                if file is None:
                    owner.execute(f"ALTER SYSTEM RESET {name}")
                    continue
                copy = self.folder / file.name
                shutil.copy(file, copy)
                copy.chmod(0o600)
                self._own(copy)
                owner.execute(f"ALTER SYSTEM SET {name} = '{copy}'")
            owner.execute(f"ALTER SYSTEM SET ssl = {'off' if key is None else 'on'}")
            owner.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)

    def owning(self, role: str = "owner") -> psycopg.Connection:
        """A connection as the database's owner."""
        return psycopg.connect(self.url(role), autocommit=True)

    def url(self, role: str, host: str = ADDRESSES[0]) -> str:
        """Address of the database for a role."""
        return f"postgresql://{role}@{host}:{self.port}/postgres"

    def address(self, ledger, commit_log, *, role="appender", host=ADDRESSES[0], over_socket=False):
        """Address of a ledger for the role that appends."""
        url = f"postgresql://{role}@/postgres?host={self.folder}&port={self.port}&" if over_socket else ""
        return f"{url or self.url(role, host) + '?'}ledger={ledger}&commits={commit_log}"

    def made(self, ledger: str, commit_log: Path, policy: LedgerPolicy) -> str:
        """Make an empty ledger; its address."""
        address = self.address(ledger, commit_log)
        make(place_of(address), self.url("owner"), canonical(policy.to_dict()).decode(), os.urandom(16).hex())
        return address


def opened(address: str) -> str | None:
    """Why a ledger does not open, or None."""
    try:
        Ledger.open(address).close()
    except LedgerError as error:
        return str(error)
    return None
