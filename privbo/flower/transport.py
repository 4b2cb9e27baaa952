"""The server's way to sites and guardians on other machines, over Flower's grid.

Every registered client is asked in every round, whoever takes part: the sample is drawn
by the door and never leaves it, so neither the network nor a site learns who was sampled.
Only over a channel that is declared to hide who is asked are sampled clients asked alone.
A round ends when every node that was asked has answered or failed, or at its timeout.
Whatever is late, duplicate, foreign or malformed is an absence, and an absence changes
neither the noise nor what the sum is divided by.

Guardians are found by their registered keys; ciphertexts and statements are carried to them, and every one of them has
to answer, or there is no release.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from accountant.errors import LedgerError
from accountant.events import Json
from accountant.ledger.chain import Position
from accountant.ledger.signing import checked
from privbo.door.door import Ticket
from privbo.door.mechanism import PrivateSum
from privbo.door.payload import Inbox
from privbo.door.sums import Sealed
from privbo.flower.messages import (
    ACTION,
    GUARD,
    MEETING,
    GuardianQuestion,
    GuardianReply,
    Question,
    Reply,
    decode_guardian_reply,
    decode_reply,
    encode_guardian_question,
    encode_question,
)
from privbo.flower.registry import Federation
from privbo.flower.site import countersigned
from privbo.guardians.ciphertexts import Call, Ciphertext, CiphertextBox, question_digest
from privbo.guardians.committee import joined_answers
from privbo.guardians.guardian import Answer
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, IntArray, Request, Standing

_NOTHING: Position = (0, "")  # seen by a site that names no head
_MEETING = "-1"  # in place of a round
_AGAIN = "the run goes on where it is when it is run again"
_POLL = 0.3  # seconds between two looks at the grid
_PATIENCE = 1.0  # seconds in one call after which a thread no longer counts
_PULLERS = 16
_NETWORK = {"httpx", "httpcore", "grpc"}  # what Flower's grid raises when the SuperLink is gone
# A reply by the name of its question, None in place of one that no decoding can read; an error ends the run.
_Fetched: TypeAlias = tuple[str, Message | None] | BaseException
Q = TypeVar("Q", Question, GuardianQuestion)


@dataclass(frozen=True, kw_only=True)
class SealedRound(Sealed):
    """Ciphertexts of a round on their way to the guardians.

    Attributes:
        broadcast: What clients were shown; every guardian computes from it what was asked.
        ciphertexts: Theirs.
    """

    broadcast: Broadcast
    ciphertexts: Sequence[Ciphertext]


@dataclass(kw_only=True)
class Flower:
    """Transport over Flower's grid; the server's end of the wire.

    Attributes:
        grid: Flower's grid.
        run: Name of the run.
        public_seed: Seed of what all sides agree on.
        federation: Sites, their clients, waiting times, and the number of sites without which no round is played.
        note: Receives the PRIVATE traffic of every round: how many nodes were asked, which sites answered, replies
            refused by reason, and seconds.
        chain: Gives the ledger's rows up to a place, as a site is shown them: from what it has seen, else the plan, on.
        seen: By site, the last place of the ledger that it has countersigned, or named when it refused.
        receipt: Receives every good countersignature with its site's name: PRIVATE, it tells who was there.
        apart: Nodes that are no sites.
    """

    grid: Grid
    run: str
    public_seed: int
    federation: Federation
    note: Callable[[Json], None]
    chain: Callable[[Standing, Position | None], bytes]
    receipt: Callable[[str, Json], None]
    seen: dict[str, Position] = field(default_factory=dict)
    apart: Callable[[], Collection[int]] = tuple
    hides_senders: bool = True  # where that is declared: the settings refuse it elsewhere
    _sites: dict[int, str] = field(default_factory=dict, init=False)
    _started: bool = field(default=False, init=False)

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | SealedRound:
        """Ask every client and collect the answers, ``(n_clients, dim)``; NaN rows are absences.

        They are ciphertexts, with what clients were shown, where vectors are shared among guardians. Over a channel
        that hides who sends, only those that the ticket names are asked; see ``require_hidden``.

        Raises:
            RunError: If fewer than ``min_sites`` nodes are there or the SuperLink is gone; the
                run can be resumed.
        """
        request, round_, n_clients = ask.request, ask.broadcast.round, sum(map(len, self.federation.clients.values()))
        if (n_guardians := len(self.federation.guardians)) and request is not None:
            n_entries = request.dim * request.n_blocks
            box = CiphertextBox(round_=round_, n_clients=n_clients, n_guardians=n_guardians, n_entries=n_entries)
            self._fill(box, ask)
            return SealedRound(broadcast=ask.broadcast, ciphertexts=box.close())
        dim, senders = 0 if request is None else request.dim, None if ticket is None else ticket.senders
        inbox = Inbox(round=round_, n_clients=n_clients, dim=dim or 1)
        if senders is None:
            self._fill(inbox, ask)
            return inbox.close()[:, :dim]
        sites = {site for site, clients in self.federation.clients.items() if senders[list(clients)].any()}
        self._fill(inbox, ask, only=sites)
        return np.where(senders[:, None], inbox.close(), np.nan)

    def _fill(self, inbox: Inbox | CiphertextBox, ask: Ask, only: Collection[str] | None = None) -> None:
        """Play one round: push the question to every node, or some sites', and put what comes in time into the box."""
        there, standing, round_ = self.wait_for_sites(), ask.standing, ask.broadcast.round
        nodes = {node: site for node, site in there.items() if only is None or site in only}
        if standing is None:
            raise RunError("a question to sites needs a ledger behind it; play it through privbo.runs.loop.play")
        question = Question(
            run=self.run,
            public_seed=self.public_seed,
            broadcast=ask.broadcast,
            released=ask.request is not None,
            standing=standing,
            chain=b"",
        )
        refused, answered, started = Counter[str](), set[str](), time.monotonic()
        # Each is shown the rows that its site lacks, as far as is known what it has seen.
        seen = {node: self.seen.get(site or self._sites.get(node) or "") for node, site in nodes.items()}
        shown = {n: dataclasses.replace(question, chain=self.chain(standing, place)) for n, place in seen.items()}
        sent = push(self.grid, shown, encode_question, ACTION, self.federation, group=str(round_))
        for identity, message in replies(self.grid, sent, seconds=self.federation.round_timeout):
            if message is None:
                refused["unreadable"] += 1
            elif (reply := self._take(sent[identity], message, nodes, inbox, refused)) is not None:
                answered.add(reply.site)
                receipt = countersigned(reply.receipt, self.run, round_, standing)
                if receipt is None:
                    refused["countersignature"] += 1
                else:
                    self.receipt(reply.site, receipt)
                    self.seen[reply.site] = (standing.sequence, standing.head)
        if nodes and not sent:
            raise RunError("the SuperLink takes no question; look at its log and run the app again")
        self.note(
            {
                "round": round_,
                "asked": len(sent),
                "answered": sorted(answered),
                "refused": refused + Counter(inbox.refused),
                "seconds": round(time.monotonic() - started, 3),
            }
        )

    def wait_for_sites(self) -> dict[int, str | None]:
        """Wait for nodes; each that is connected, with the site its key proves (None without keys).

        Every site is waited for before the first round, later as many as there have to be.

        Raises:
            RunError: If fewer than ``min_sites`` are there in time.
        """
        n_sites, least = len(self.federation.clients), self.federation.min_sites
        deadline = time.monotonic() + self.federation.start_timeout
        while len(nodes := self._nodes()) < (least if self._started else n_sites) and time.monotonic() < deadline:
            time.sleep(_POLL)
        if len(nodes) < least:
            raise RunError(
                f"{len(nodes)} of {n_sites} sites are connected and min_sites is {least}; start their SuperNodes and "
                "run the app again: it goes on here"
            )
        self._started = True
        return nodes

    def _nodes(self) -> dict[int, str | None]:
        found = [node for node in self.grid.get_nodes() if int(node.node_id) not in self.apart()]
        if not self.federation.has_keys:
            return {int(node.node_id): None for node in found}
        sites = {int(node.node_id): self.federation.site_with(bytes(node.public_key)) for node in found}
        return {node: site for node, site in sites.items() if site is not None}

    def _take(
        self,
        sent: Sent,
        message: Message,
        nodes: Mapping[int, str | None],
        inbox: Inbox | CiphertextBox,
        refused: Counter[str],
    ) -> Reply | None:
        """Put one node's answers into the inbox; returns the reply under its site's name, if it was an answer."""
        reply = decode_reply(message, sent.nonce)
        if isinstance(reply, str):
            refused[reply] += 1
            return None
        # By its key; without keys, for trying out, by its word.
        named = reply.site if reply.site in self.federation.clients else None
        site = nodes[sent.node] if self.federation.has_keys else named
        if reply.error is not None:
            refused[f"raised {reply.error}"] += 1
            if site is not None:
                self.seen[site] = reply.seen or _NOTHING  # it is shown what it lacks the next time
            return None
        if site is None:
            refused["foreign node"] += 1
            return None
        self._sites[sent.node] = site
        mine = set(self.federation.clients[site])
        for client, answer in reply.answers:
            if type(client) is int and client in mine:
                inbox.receive(client, answer)
            else:
                refused["foreign client"] += 1
        return dataclasses.replace(reply, site=site)


@dataclass(kw_only=True)
class FlowerCommittee:
    """Guardians at the other end of Flower's grid.

    Attributes:
        grid: Flower's grid.
        federation: Waiting times, and every guardian's public keys by name, in the order of shares.
        run: Name of the run.
        plan: Name of its declared plan, as every party computes it.
        public_seed: Seed of what all sides agree on.
        sites: Nodes that are known to be sites, by their keys.
        note: Receives every guardian's signed receipt.
        nodes: By name, where each guardian was met last.
    """

    grid: Grid
    federation: Federation
    run: str
    plan: str
    public_seed: int
    sites: Callable[[bytes], bool]
    note: Callable[[Json], None]
    nodes: dict[str, int] = field(default_factory=dict)

    def meet(self) -> None:
        """Find the node of every guardian, or wait for those that are missing.

        Raises:
            RunError: If one is not there in time.
        """
        deadline, asked = time.monotonic() + self.federation.start_timeout, set[int]()
        while True:
            there = {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}
            self.nodes = {name: node for name, node in self.nodes.items() if node in there}
            asked &= there.keys()
            unknown = [n for n, key in there.items() if n not in asked and not self.sites(key)]
            if len(self.nodes) < len(self.federation.guardians) and unknown:
                asked.update(unknown)
                self._greet(unknown)
            if len(self.nodes) == len(self.federation.guardians):
                return
            if time.monotonic() > deadline:
                missing = ", ".join(name for name in self.federation.guardians if name not in self.nodes)
                raise RunError(f"guardians {missing} are not connected; start their SuperNodes: {_AGAIN}")
            time.sleep(_POLL)

    def gather(self, round_: int, mechanism: PrivateSum, request: Request, answers: object) -> IntArray:
        """Give the noisy sums of ciphertexts in grid units; see ``privbo.door.door``.

        Raises:
            RunError: If the answers are no ciphertexts of a round over Flower.
        """
        if not isinstance(answers, SealedRound):
            raise RunError(f"guardians on other machines sum ciphertexts, and not {type(answers).__name__}")
        cards = self.federation.guardians
        call = Call(run=self.run, round=round_, plan=self.plan, question=question_digest(mechanism, request))
        shown = GuardianQuestion(
            kind="receive", run=self.run, round=round_, public_seed=self.public_seed, broadcast=answers.broadcast
        )
        shares = {name: [one.share(place) for one in answers.ciphertexts] for place, name in enumerate(cards)}
        stated = self._ask({n: dataclasses.replace(shown, encrypted_shares=own) for n, own in shares.items()}, round_)
        # Each is shown the others' statements; its own it has.
        others = {n: [each.statement or {} for name, each in stated.items() if name != n] for n in cards}
        answered = self._ask(
            {n: GuardianQuestion(kind="answer", run=self.run, round=round_, signed=own) for n, own in others.items()},
            round_,
        )
        nothing = Answer(payload=b"", receipt={})
        found = {name: each.answer or nothing for name, each in answered.items()}
        return joined_answers(found, cards, call, request, self.note)

    def _ask(self, questions: Mapping[str, GuardianQuestion], round_: int) -> dict[str, GuardianReply]:
        """Ask all guardians at once; every reply, in the order of shares.

        Raises:
            RunError: If one refuses, is gone, or does not answer in time.
        """
        self.meet()
        asked = {self.nodes[name]: question for name, question in questions.items()}
        found = {sent.node: reply for sent, reply in self._exchange(asked, str(round_), self.federation.round_timeout)}
        replied = {name: found.get(self.nodes[name], GuardianReply(refusal="no answer in time")) for name in questions}
        for name, reply in replied.items():
            if reply.refusal is not None:
                self.nodes.pop(name)
                raise RunError(f"guardian {name}, round {round_}: {reply.refusal}; there is no release, and {_AGAIN}")
        return replied

    def _greet(self, nodes: Sequence[int]) -> None:
        """Ask nodes who they are: a guardian's registered key signs this very greeting."""
        asked = dict.fromkeys(nodes, GuardianQuestion(kind="meet", run=self.run))
        for sent, reply in self._exchange(asked, _MEETING, self.federation.start_timeout):
            with suppress(LedgerError, KeyError, TypeError):
                content, key = checked(reply.statement, MEETING), (reply.statement or {})["key"]
                name = str(content["guardian"])
                is_fresh = (content["run"], content["nonce"]) == (self.run, sent.nonce.hex())
                if is_fresh and self.federation.guardians[name].signing == key:
                    self.nodes[name] = sent.node

    def _exchange(
        self, questions: Mapping[int, GuardianQuestion], group: str, seconds: float
    ) -> Iterator[tuple[Sent, GuardianReply]]:
        """Push a question to every node and decode what comes back in time."""
        sent = push(self.grid, questions, encode_guardian_question, GUARD, self.federation, group=group)
        for identity, message in replies(self.grid, sent, seconds=seconds):
            yield sent[identity], decode_guardian_reply(message, sent[identity].nonce)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A question on its way: to which node, with which nonce."""

    node: int
    nonce: bytes


def push(
    grid: Grid,
    questions: Mapping[int, Q],
    encode: Callable[[Q, bytes], RecordDict],
    action: str,
    federation: Federation,
    *,
    group: str,
) -> dict[str, Sent]:
    """Push a question to every node, each with a nonce of its own; what was sent, by the messages' names."""
    sent = [Sent(node=node, nonce=secrets.token_bytes(16)) for node in questions]
    messages = [
        Message(encode(question, one.nonce), one.node, f"query.{action}", ttl=federation.round_timeout, group_id=group)
        for one, question in zip(sent, questions.values(), strict=True)
    ]
    # Flower gives an empty name to a message it could not take, such as one to a node that has just left.
    return {name: one for name, one in zip(grid.push_messages(messages), sent, strict=False) if name}


@dataclass(kw_only=True)
class ReplyFetcher:
    """Threads that fetch the replies to one round's questions, each call for one reply.

    Attributes:
        grid: Flower's grid.
        n_asked: Number of nodes that were asked.
        waiting: Names of the questions that no thread asks about right now.
        found: Replies, and what ends the run.
        over: Set when replies are awaited no longer.
    """

    grid: Grid
    n_asked: int
    waiting: SimpleQueue[str] = field(default_factory=SimpleQueue)
    found: SimpleQueue[_Fetched] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)
    _since: dict[int, float] = field(default_factory=dict)
    _started_threads: int = 0

    def start_missing(self) -> None:
        """Start the threads that are missing: those that hang in a call count no more."""
        now = time.monotonic()
        hanging = sum(now - since > _PATIENCE for since in list(self._since.values()))
        while self._started_threads - hanging < min(_PULLERS, self.n_asked):
            threading.Thread(target=self._fetch, args=(self._started_threads,), daemon=True).start()
            self._started_threads += 1

    def _fetch(self, worker: int) -> None:
        while not self.over.is_set():
            try:
                identity = self.waiting.get(timeout=_POLL)
            except Empty:
                continue
            self._since[worker] = time.monotonic()
            try:
                replies = list(self.grid.pull_messages([identity]))
            except Exception as error:  # what a node sent may break Flower's own decoding
                if _is_gone(error):
                    self.found.put(error)
                    return
                self.found.put((identity, None))  # Flower hands every reply out once: this one is lost
                continue
            finally:
                del self._since[worker]
            for message in replies:
                self.found.put((message.metadata.reply_to_message_id, message))
            if not replies:
                self.waiting.put(identity)
                # However many are asked, so many looks in vain a second and no more: each costs the SuperLink a call.
                self.over.wait(_POLL)


def replies(grid: Grid, sent: Collection[str], *, seconds: float) -> Iterator[tuple[str, Message | None]]:
    """Yield replies as they come, None for one that can't be read, until all are there or the time is up.

    Flower fetches the replies of one call together and waits for their parts, so one that can't be
    decoded would lose the others, and a node that announces a reply and never delivers it would hold
    them up. Every call therefore asks for one reply, and a thread that hangs in its call is left behind
    and replaced.

    Args:
        grid: Flower's grid.
        sent: Names of the questions.
        seconds: Time until replies are awaited no longer.

    Raises:
        RunError: If the SuperLink is out of reach.
    """
    fetcher = ReplyFetcher(grid=grid, n_asked=len(sent))
    for identity in sent:
        fetcher.waiting.put(identity)
    deadline = time.monotonic() + seconds
    left = set(sent)
    try:
        while left and (rest := deadline - time.monotonic()) > 0:
            fetcher.start_missing()
            try:
                item = fetcher.found.get(timeout=min(rest, _PATIENCE))
            except Empty:
                continue
            if isinstance(item, BaseException):
                raise RunError(f"the SuperLink is out of reach ({type(item).__name__}); run the app again") from item
            if item[0] in left:
                left.discard(item[0])
                yield item
    finally:
        fetcher.over.set()


def _is_gone(error: Exception) -> bool:
    """Whether an error of the grid means that the SuperLink is out of reach, rather than one reply's being bad."""
    network = type(error).__module__.split(".")[0] in _NETWORK
    return isinstance(error, OSError) or (network and not hasattr(error, "response"))
