"""A site's own disk: its clients' state and a record of everything they ever sent.

Everything here is PRIVATE to the site and never leaves it. A round is answered once: what
was sent is stored before it is sent, and asked again the site sends the same bytes, also
after a restart. A site answers to one run per folder and refuses to be asked the same
round in two ways, so a server cannot collect two different answers to one charge.

Before a site answers, it holds the rows it is shown against the last head of the server's ledger that it has seen: a
server whose ledger went back would ask for a second answer to a charge, and gets none. The first question shows
the rows from the run's plan on; later ones need only what came since, because a head binds everything
before it. What the site has seen is durable before anything leaves; the countersignature, which names it,
goes back with the answer, and where the rows do not go on from it the refusal does.

Layout, for a site that keeps its runs in DIR::

    DIR/RUN/common.json        the common setting that was announced, of a run that ends with one
    DIR/RUN/facts.json         numbers of the clients and their search space, to read the evaluations by
    DIR/RUN/seed.json          root of the clients' own randomness
    DIR/RUN/state/000004.npz   the clients' state after round 4; only the latest stays
    DIR/RUN/sent/000004.npz    what was sent in round 4: clients; vectors or a ciphertext, for which question
    DIR/RUN/receipts.jsonl     round, sequence, head and plan of every question that was answered
    DIR/signing.key            the site's own key (Ed25519) for countersignatures, made at its first answer
    DIR/RUN/evaluations.npz    what the clients evaluated so far, and what each would use now
    DIR/RUN/scores.jsonl       how many scores of records were clipped, by evaluation; the last line of one counts
    DIR/RUN/errors.log         why an answer failed; nothing of it is sent
    DIR/errors.log             why the site would not answer a run that was not made
"""

from __future__ import annotations

import json
import re
import secrets
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accountant.events import Json
from accountant.ledger.chain import Position, Row, decode_rows, follows, makes_good
from accountant.ledger.signing import checked, sign, signing_key
from privbo.flower.messages import Question
from privbo.protocol.common import CHOSEN
from privbo.protocol.errors import RunError
from privbo.protocol.files import alone, append_line, load_arrays, read_json, read_lines, save_arrays, write_json
from privbo.protocol.messages import Arrays, Cohort, FloatArray, IntArray, Standing
from privbo.protocol.settings import dump_settings
from privbo.protocol.space import Space
from privbo.runs.best import COMMON, FACTS, SiteFacts, site_facts
from privbo.runs.clients import Each, answers_of

PURPOSE = "countersignature"
_LONGEST = 4000  # bytes of a countersignature
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_RESERVED = ("signing.key", "sealing.key", "errors.log", "refused.jsonl", "site.toml", "guardian.toml")


def require_run_name(run: str) -> None:
    """Refuse a name that is no plain file name, or one that a party's own files have.

    Raises:
        RunError: Naming it.

    Example:
        >>> require_run_name("trial-0123abcd")
    """
    if not _NAME.fullmatch(run) or run in _RESERVED:
        raise RunError(f"run={run[:40]!r} is no plain name of letters, digits, dots and dashes, or one of {_RESERVED}")


def as_they_are(vectors: FloatArray) -> Arrays:
    """Send clients' vectors themselves."""
    return {"vectors": vectors}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A round as a site computes it, not as the server says.

    Attributes:
        dim: Length of a client's vector; 0 in a round of local work.
        event: Name of the release's event; empty in a round of local work.
        require_ledger: Holds rows of the server's ledger, and the digest of the plan's among them, to plan and charge.
        send: Makes what is sent of the clients' vectors ``(n, dim)``: themselves, or a ciphertext for the guardians.
        is_hidden: Whether the server must not tell an absence from an answer.
    """

    dim: int
    event: str
    require_ledger: Callable[[str, list[Row]], None]
    send: Callable[[FloatArray], Arrays] = as_they_are
    is_hidden: bool = False


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
        with alone(self.path):
            if not path.exists():
                write_json(path, {"seed": secrets.randbits(63) if given is None else given})
            return int(read_json(path)["seed"])

    def keep_facts(self, clients: IntArray, space: Space) -> None:
        """Write down once what the arrays in this folder speak of, for those who read them later.

        Raises:
            RunError: If they speak of other clients: what those sent would be sent again under these numbers.
        """
        with alone(self.path):
            if not (self.path / FACTS).exists():
                write_json(self.path / FACTS, dump_settings(SiteFacts.of(clients, space)))
            elif site_facts(self.path).clients != tuple(clients.tolist()):
                raise RunError(f"{self.path} is of other clients; give every site a directory of its own")

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
        with alone(self.path):
            wanted.require_ledger(question.standing.plan, self._extension(question))
            made = self._sent(question) or self._act(question, wanted, own)
            return made, self._countersign(question)

    def _extension(self, question: Question) -> list[Row]:
        """Refuse a question behind which no ledger stands that extends what was seen; returns the rows shown."""
        rows, kept, standing = decode_rows(question.chain), read_lines(self.receipts), question.standing
        if not rows or (rows[-1].sequence, rows[-1].digest) != (standing.sequence, standing.head):
            raise RunError("the rows that were shown do not end at the ledger's head")
        run, round_ = question.run, question.broadcast.round
        if question.released and f"{run}/{round_}" not in {row.release_id for row in rows}:
            raise RunError(f"round {round_} was not charged in the ledger that was shown")
        if _seen(round_, standing) in kept:
            return rows  # asked again: the same bytes go back
        last = self.last_seen()
        same_plan = last is None or kept[-1]["plan"] == standing.plan
        if last is not None and same_plan and follows(rows, last):
            return rows  # the plan was verified when it was first shown
        plan = next((row for row in rows if row.digest == standing.plan), None)
        if plan is None or json.loads(plan.body).get("run") != run:
            raise RunError("the ledger that was shown binds no plan of this run, and does not go on from what was seen")
        if last is not None and not (same_plan and makes_good(rows, last)):
            raise RunError(
                f"the ledger does not extend row {last[0]}, which this site has seen: it went back, or it is another "
                "one; nothing is answered"
            )
        return rows

    def _sent(self, question: Question) -> Arrays | None:
        """What was sent in this round before, if it was asked in the same way."""
        round_, latest = question.broadcast.round, self.latest()
        path = self._file("sent", round_)
        if path.exists():
            sent = load_arrays(path)
            if sent["digest"].tobytes() != question.digest():
                raise RunError(f"round {round_} was asked before in another way")
            return sent
        if latest is not None and round_ < latest:
            raise RunError(f"round {round_} is over; the last one answered was {latest}")
        return None

    @np.errstate(all="ignore")  # as in ``LocalWorker.work``
    def _act(self, question: Question, wanted: Wanted, own: Cohort | Each) -> Arrays:
        # The state after the last round that was answered: a crash after a state was written and before its
        # answer was kept leaves a later one behind, which would count that round's evaluations twice.
        if (latest := self.latest()) is not None:
            own.restore(load_arrays(self._file("state", latest)))
        before = {name: np.array(array) for name, array in own.snapshot().items()} if wanted.is_hidden else {}
        try:
            vectors = np.asarray(answers_of(own, question.broadcast, wanted.dim), dtype=np.float64)
            made_of, history = own.snapshot(), own.history()
        except Exception:  # whether it is raised may depend on what is private
            if not wanted.is_hidden:
                raise
            self.note(traceback.format_exc())
            own.restore(before)
            vectors, made_of, history = np.full((len(own.clients), wanted.dim), np.nan), before, own.history()
        chosen = question.broadcast.arrays.get(CHOSEN)
        if chosen is not None and not wanted.dim and site_facts(self.path).has_point(chosen):
            write_json(self.path / COMMON, {"unit": chosen.tolist()})
        if not wanted.dim:
            vectors = np.empty((len(own.clients), 0))
        if vectors.shape != (len(own.clients), wanted.dim):
            raise RunError(f"clients answered with shape {vectors.shape}, asked were vectors of {wanted.dim}")
        state = self._file("state", question.broadcast.round)
        save_arrays(state, made_of)
        save_arrays(self.path / "evaluations.npz", vars(history))
        made = wanted.send(vectors)
        asked = {"digest": np.frombuffer(question.digest(), dtype=np.uint8), "event": np.array(wanted.event)}
        save_arrays(self._file("sent", question.broadcast.round), {"clients": own.clients, **asked, **made})
        for path in (self.path / "state").glob("*.npz"):
            if path != state:
                path.unlink()
        return made

    def _countersign(self, question: Question) -> bytes:
        """Keep the head that was shown, durably, and countersign it."""
        seen = _seen(question.broadcast.round, question.standing)
        if seen not in read_lines(self.receipts):
            append_line(self.receipts, seen, durable=True)
        key = signing_key(self.path.parent / "signing.key")
        return json.dumps(sign(key, PURPOSE, {"run": question.run} | seen)).encode()

    @property
    def receipts(self) -> Path:
        """File of the ledger's heads that this site has seen."""
        return self.path / "receipts.jsonl"

    def last_seen(self) -> Position | None:
        """The last head of the server's ledger that was seen: sequence and digest."""
        kept = read_lines(self.receipts)
        return (int(kept[-1]["sequence"]), str(kept[-1]["head"])) if kept else None

    def releases(self, *, but: int) -> Counter[str]:
        """Count the releases that were answered in other rounds, by the names of their events."""
        paths = [self._file("sent", round_) for round_ in self.answered() - {but}]
        return Counter(name for path in paths if (name := str(load_arrays(path)["event"])))

    def answered(self) -> set[int]:
        """Give the rounds that were answered."""
        return {int(path.stem) for path in (self.path / "sent").glob("*.npz")}

    def latest(self) -> int | None:
        """Index of the last round that was answered, or None."""
        return max(self.answered(), default=None)

    def note(self, text: str) -> None:
        """Append to this site's own log of the run; before that is made, to the one of all runs."""
        keep_words(self.path if self.path.is_dir() else self.path.parent, text)

    def _file(self, folder: str, round_: int) -> Path:
        return self.path / folder / f"{round_:06d}.npz"


def keep_words(folder: Path, text: str) -> None:
    """Append to a party's own log if that can be written; whatever a client's code says, nothing is raised."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "errors.log").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")


def countersigned(payload: object, run: str, round_: int, standing: Standing) -> Json | None:
    """Give a countersignature that a site sent, None for anything else; raises nothing, whatever arrives."""
    wanted = {"run": run} | _seen(round_, standing)
    try:
        statement = dict(json.loads(payload)) if type(payload) is bytes and len(payload) < _LONGEST else {}
        seen = checked(statement, PURPOSE)
        signed = {"key": str(statement["key"]), "signature": str(statement["signature"])}
    except Exception:  # a hostile site must not end a run
        return None
    return None if seen != wanted else _seen(round_, standing) | signed


def _seen(round_: int, standing: Standing) -> Json:
    return {"round": round_, "sequence": standing.sequence, "head": standing.head, "plan": standing.plan}
