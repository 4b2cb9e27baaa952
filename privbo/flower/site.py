"""A site's own disk: its clients' state and a record of everything they ever sent.

Everything here is PRIVATE to the site and never leaves it. A round is answered once: what
was sent is stored before it is sent, and asked again the site sends the same bytes, also
after a restart. A site answers to one run per folder and refuses to be asked the same
round in two ways, so a server cannot collect two different answers to one charge.

Layout, for a site that keeps its runs in DIR::

    DIR/RUN/common.json        the common setting that was announced, of a run that ends with one
    DIR/RUN/facts.json         numbers of the clients and their search space, to read the evaluations by
    DIR/RUN/seed.json          root of the clients' own randomness
    DIR/RUN/state/000004.npz   the clients' state after round 4; only the latest stays
    DIR/RUN/sent/000004.npz    what was sent in round 4: clients; vectors or a ciphertext, for which question
    DIR/RUN/receipts.jsonl     heads of the server's ledger that were shown and countersigned
    DIR/signing.key            the site's key for countersignatures
    DIR/RUN/evaluations.npz    what the clients evaluated so far, and what each would use now
    DIR/RUN/errors.log         why an answer failed; nothing of it is sent
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import secrets
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from accountant.ledger.chain import Row
from privbo.flower.receipts import SiteReceipts
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import RunError
from privbo.protocol.files import load_arrays, read_json, save_arrays, write_json
from privbo.protocol.messages import Broadcast, Cohort, FloatArray, IntArray, Standing
from privbo.protocol.settings import dump_settings
from privbo.protocol.space import Space
from privbo.runs.best import COMMON, FACTS, SiteFacts
from privbo.runs.clients import Each, answers_of

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_RESERVED = ("signing.key", "sealing.key", "errors.log", "refused.jsonl", "site.toml", "guardian.toml")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question to a site in one round.

    Attributes:
        run: Name of the run.
        public_seed: Seed of what both sides agree on.
        broadcast: Public arrays that every client is shown.
        released: Whether the round ends with a release; else it is one of local work.
        standing: Where the server's ledger stands.
        chain: Rows of that ledger up to where it stands: from what the site has seen, else from the run's plan, on.
    """

    run: str
    public_seed: int
    broadcast: Broadcast
    released: bool
    standing: Standing | None = None
    chain: bytes = b""

    def digest(self) -> bytes:
        """Compute SHA-256 over everything that is asked."""
        asked = (self.run, self.public_seed, self.broadcast.round, self.released)
        found = hashlib.sha256(repr(asked).encode())
        for name, array in sorted(self.broadcast.arrays.items()):
            found.update(repr((name, array.dtype.str, array.shape)).encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.digest()


def require_run_name(run: str) -> None:
    """Refuse a name that is no plain file name, or one that a party's own files have.

    Raises:
        RunError: Naming it.

    Example:
        >>> require_run_name("trial-0123abcd")
    """
    if not _NAME.fullmatch(run) or run in _RESERVED:
        raise RunError(f"run={run[:40]!r} is no plain name of letters, digits, dots and dashes, or one of {_RESERVED}")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A round as a site computes it, not as the server says.

    Attributes:
        dim: Length of a client's vector; 0 in a round of local work.
        event: Name of the release's event; empty in a round of local work.
        require_ledger: Holds rows of the server's ledger, and the digest of the plan's among them, to plan and charge.
        send: Makes what is sent of the clients' vectors ``(n, dim)``: themselves, or a ciphertext sealed to guardians.
    """

    dim: int
    event: str
    require_ledger: Callable[[str, list[Row]], None]
    send: Callable[[FloatArray], Arrays] = lambda vectors: {"vectors": vectors}


@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """A site's folder for one run.

    Attributes:
        path: ``DIR/RUN``.
    """

    path: Path

    @classmethod
    def open(cls, directory: Path, run: str) -> SiteRecord:
        """Open the folder of a run; makes it where it is missing.

        Raises:
            RunError: If the run's name is no plain file name.

        Example:
            >>> import tempfile
            >>> SiteRecord.open(Path(tempfile.mkdtemp()), "run-1").latest() is None
            True
        """
        require_run_name(run)
        record = cls(path=directory / run)
        for folder in ("sent", "state"):
            (record.path / folder).mkdir(parents=True, exist_ok=True)
        record.path.chmod(0o700)
        return record

    def seed(self, given: int | None) -> int:
        """Give the root seed of the clients' own randomness: the run's where it names one, else the site's secret."""
        path = self.path / "seed.json"
        with self._alone():
            if not path.exists():
                write_json(path, {"seed": secrets.randbits(63) if given is None else given})
            return int(read_json(path)["seed"])

    def keep_facts(self, clients: IntArray, space: Space) -> None:
        """Write down once what the arrays in this folder speak of, for those who read them later."""
        path = self.path / FACTS
        with self._alone():
            if not path.exists():
                facts = SiteFacts(
                    clients=tuple(clients.tolist()),
                    space=dict(space.parameters),
                    constraints=tuple(space.constraints),
                )
                write_json(path, dump_settings(facts))

    @property
    def receipts(self) -> SiteReceipts:
        """Heads of the server's ledger that this site has seen."""
        return SiteReceipts(path=self.path / "receipts.jsonl", key=self.path.parent / "signing.key")

    def answer(self, question: Question, wanted: Wanted, own: Cohort | Each) -> tuple[Arrays, bytes]:
        """Answer one round with what is sent of the clients' vectors, and a countersigned receipt.

        A round that was answered before gets the stored answer again. NaN rows are absences.

        Args:
            question: What was asked.
            wanted: The round as this site computes it.
            own: The clients.

        Raises:
            RunError: If this round was asked in another way before, or lies behind, or no ledger
                stands behind it that extends what this site has seen.
            LedgerError: If the rows of the ledger that were shown are no chain.
        """
        with self._alone():
            if question.standing is None:
                raise RunError("the server shows no ledger behind its question; use one version of privbo")
            asked, round_ = question.standing, question.broadcast.round
            rows = self.receipts.require(question.run, round_, asked, question.chain, released=question.released)
            wanted.require_ledger(asked.plan, rows)
            made = self._answer(question, wanted, own)
            return made, self.receipts.keep(question.run, round_, asked)

    def _answer(self, question: Question, wanted: Wanted, own: Cohort | Each) -> Arrays:
        sent = self._sent(question.broadcast.round)
        if sent is not None:
            if sent["digest"].tobytes() != question.digest():
                raise RunError(f"round {question.broadcast.round} was asked before in another way")
            return sent
        if (latest := self.latest()) is not None and question.broadcast.round < latest:
            raise RunError(f"round {question.broadcast.round} is over; the last one answered was {latest}")
        return self._act(question, wanted, own)

    def _act(self, question: Question, wanted: Wanted, own: Cohort | Each) -> Arrays:
        # The state after the last round that was answered: a crash after a state was written and before its
        # answer was kept leaves a later one behind, which would count that round's evaluations twice.
        latest = self.latest()
        if latest is not None:
            own.restore(load_arrays(self._state_of(latest)))
        vectors = np.asarray(answers_of(own, question.broadcast, wanted.dim), dtype=np.float64)
        if CHOSEN in question.broadcast.arrays:
            write_json(self.path / COMMON, {"unit": np.asarray(question.broadcast.arrays[CHOSEN]).tolist()})
        if not wanted.dim:
            vectors = np.empty((len(own.clients), 0))
        if vectors.shape != (len(own.clients), wanted.dim):
            raise RunError(f"clients answered with shape {vectors.shape}, asked were vectors of {wanted.dim}")
        save_arrays(self._state_of(question.broadcast.round), own.snapshot())
        save_arrays(self.path / "evaluations.npz", vars(own.history()))
        made = wanted.send(vectors)
        self._store(question, wanted, own.clients, made)
        for path in (self.path / "state").glob("*.npz"):
            if path != self._state_of(question.broadcast.round):
                path.unlink()
        return made

    def _store(self, question: Question, wanted: Wanted, clients: IntArray, made: Arrays) -> None:
        digest = np.frombuffer(question.digest(), dtype=np.uint8)
        event = np.array(wanted.event)
        path = self._path_of(question.broadcast.round)
        save_arrays(path, {"clients": clients, "digest": digest, "event": event, **made})

    def releases(self, *, but: int) -> Counter[str]:
        """Count the releases that were answered in other rounds, by the names of their events."""
        paths = [path for path in (self.path / "sent").glob("*.npz") if int(path.stem) != but]
        return Counter(name for path in paths if (name := str(load_arrays(path)["event"])))

    def _sent(self, round_: int) -> Arrays | None:
        path = self._path_of(round_)
        return load_arrays(path) if path.exists() else None

    def _state_of(self, round_: int) -> Path:
        return self.path / "state" / f"{round_:06d}.npz"

    def _path_of(self, round_: int) -> Path:
        return self.path / "sent" / f"{round_:06d}.npz"

    def latest(self) -> int | None:
        """Index of the last round that was answered, or None."""
        rounds = [int(path.stem) for path in (self.path / "sent").glob("*.npz")]
        return max(rounds, default=None)

    def note_failure(self) -> None:
        """Append the exception that is being handled to this site's own log."""
        with (self.path / "errors.log").open("a") as file:
            file.write(traceback.format_exc() + "\n")

    def keep_failure(self, client: int, reason: str) -> None:
        """Append a client's failure to this site's own log."""
        with (self.path / "errors.log").open("a") as file:
            file.write(f"client {client}: {reason}\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of the site at a time, so that a round is never acted on twice."""
        with (self.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
