"""Rounds with clients on other machines, over Flower's grid.

Every registered client is asked in every round, whoever takes part: the sample is drawn
by the door and never leaves it, so neither the network nor a site learns who was sampled.
Only over a channel that is declared to hide who is asked are sampled clients asked alone.
A round ends when every node that was asked has answered or failed, or at its timeout.
Whatever is late, duplicate, foreign or malformed is an absence, and an absence changes
neither the noise nor what the sum is divided by.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from accountant.events import Json
from accountant.ledger.chain import Position
from privbo.door.door import Ticket
from privbo.door.payload import Inbox
from privbo.door.sums import Sealed
from privbo.flower.messages import MESSAGE_TYPE, Header, Reply, decode_reply, encode_question
from privbo.flower.receipts import countersigned
from privbo.flower.registry import Registry
from privbo.flower.settings import Timeouts
from privbo.flower.site import Question
from privbo.guardians.ciphertexts import Ciphertext, CiphertextBox
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Standing

_UNREADABLE = "unreadable"
_NOTHING: Position = (0, "")  # seen by a site that names no head


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Traffic of one round, as the server saw it. PRIVATE.

    Attributes:
        round: Index of the round.
        asked: Number of nodes that were asked.
        answered: Names of the sites with an answer, sorted.
        refused: Number of refused replies by reason.
        seconds: Duration of the round in seconds.
    """

    round: int
    asked: int
    answered: tuple[str, ...]
    refused: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Sent:
    node: int
    nonce: bytes


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
        header: Facts of the run that every question repeats.
        registry: Sites and their clients.
        timeouts: Waiting times, and the number of sites without which no round is played.
        note: Receives the PRIVATE traffic of every round.
        chain: Gives the ledger's rows up to a place, as a site is shown them: from what it has seen, else the plan, on.
        seen: By site, the last place of the ledger that it has countersigned, or named when it refused.
        receipt: Receives every good countersignature with its site's name: PRIVATE, it tells who was there.
        n_guardians: Number of guardians; 0 where the server is trusted.
        apart: Nodes that are no sites.
    """

    grid: Grid
    header: Header
    registry: Registry
    timeouts: Timeouts
    note: Callable[[Exchange], None]
    chain: Callable[[Standing, Position | None], bytes]
    receipt: Callable[[str, Json], None]
    seen: dict[str, Position] = field(default_factory=dict)
    n_guardians: int = 0
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
        request, round_, n_clients = ask.request, ask.broadcast.round, self.registry.n_clients
        if self.n_guardians and request is not None:
            n_entries = request.dim * request.n_blocks
            sealed = CiphertextBox(
                round_=round_, n_clients=n_clients, n_guardians=self.n_guardians, n_entries=n_entries
            )
            self._fill(sealed, ask)
            return SealedRound(broadcast=ask.broadcast, ciphertexts=sealed.close())
        dim, senders = 0 if request is None else request.dim, None if ticket is None else ticket.senders
        inbox = Inbox(round=round_, n_clients=n_clients, dim=dim or 1)
        if senders is None:
            self._fill(inbox, ask)
            return inbox.close()[:, :dim]
        sites = {site for site, clients in self.registry.clients.items() if senders[list(clients)].any()}
        self._fill(inbox, ask, only=sites)
        return np.where(senders[:, None], inbox.close(), np.nan)

    def _fill(self, inbox: Inbox | CiphertextBox, ask: Ask, only: Collection[str] | None = None) -> None:
        """Play one round: push the question to every node, or some sites', and put what comes in time into the box."""
        there = self._gather()
        nodes = {node: site for node, site in there.items() if only is None or site in only}
        if (standing := ask.standing) is None:
            raise RunError("a question to sites needs a ledger behind it; play it through privbo.runs.loop.play")
        question = Question(
            run=self.header.run,
            public_seed=self.header.public_seed,
            broadcast=ask.broadcast,
            released=ask.request is not None,
            standing=standing,
        )
        refused: Counter[str] = Counter()
        answered: set[str] = set()
        started = time.monotonic()
        sent = self._push(question, nodes)
        for identity, message in replies(self.grid, sent, poll=self.timeouts.poll, seconds=self.timeouts.round_timeout):
            if message is None:
                refused[_UNREADABLE] += 1
            elif (reply := self._take(sent[identity], message, nodes, inbox, refused)) is not None:
                answered.add(reply.site)
                seen = countersigned(reply.receipt, self.header.run, ask.broadcast.round, standing)
                if seen is None:
                    refused["countersignature"] += 1
                else:
                    self.receipt(reply.site, seen)
                    self.seen[reply.site] = (standing.sequence, standing.head)
        if nodes and not sent:
            raise RunError("the SuperLink takes no question; look at its log and run the app again")
        self.note(
            Exchange(
                round=ask.broadcast.round,
                asked=len(sent),
                answered=tuple(sorted(answered)),
                refused=refused + Counter(inbox.refused),
                seconds=round(time.monotonic() - started, 3),
            )
        )

    def wait_for_sites(self) -> None:
        """Wait until every site is connected, or for as long as the first round would.

        Raises:
            RunError: If fewer than ``min_sites`` are there.
        """
        self._gather()

    def _gather(self) -> dict[int, str | None]:
        """Wait for nodes; each that is connected, with the site its key proves (None without keys)."""
        wanted = self.timeouts.min_sites if self._started else len(self.registry.sites)
        deadline = time.monotonic() + self.timeouts.start_timeout
        nodes = self._nodes()
        while len(nodes) < wanted and time.monotonic() < deadline:
            time.sleep(self.timeouts.poll)
            nodes = self._nodes()
        if len(nodes) < self.timeouts.min_sites:
            raise RunError(
                f"{len(nodes)} of {len(self.registry.sites)} sites are connected and min_sites is "
                f"{self.timeouts.min_sites}; start their SuperNodes and run the app again: it goes on here"
            )
        self._started = True
        return nodes

    def _nodes(self) -> dict[int, str | None]:
        found = [node for node in self.grid.get_nodes() if int(node.node_id) not in self.apart()]
        if not self.registry.keys:
            return {int(node.node_id): None for node in found}
        sites = {int(node.node_id): self.registry.site_with(bytes(node.public_key)) for node in found}
        return {node: site for node, site in sites.items() if site is not None}

    def _push(self, question: Question, nodes: dict[int, str | None]) -> dict[str, _Sent]:
        ciphertexts = [_Sent(node=node, nonce=secrets.token_bytes(16)) for node in nodes]
        messages = [
            Message(
                encode_question(self.header, self._shown(question, ciphertext.node, nodes), ciphertext.nonce),
                ciphertext.node,
                MESSAGE_TYPE,
                ttl=self.timeouts.round_timeout,
                group_id=str(question.broadcast.round),
            )
            for ciphertext in ciphertexts
        ]
        identities = list(self.grid.push_messages(messages))
        # Flower gives an empty name to a message it could not take, such as one to a node that has just left.
        return {identity: ciphertext for identity, ciphertext in zip(identities, ciphertexts, strict=False) if identity}

    def _shown(self, question: Question, node: int, nodes: dict[int, str | None]) -> Question:
        """The question with the rows that the node's site lacks, as far as is known what it has seen."""
        site = nodes[node] or self._sites.get(node)
        if question.standing is None:
            return question
        return dataclasses.replace(question, chain=self.chain(question.standing, self.seen.get(site or "")))

    def _take(
        self,
        sent: _Sent,
        message: Message,
        nodes: dict[int, str | None],
        inbox: Inbox | CiphertextBox,
        refused: Counter[str],
    ) -> Reply | None:
        """Put one node's answers into the inbox; returns the reply under its site's name, if it was an answer."""
        reply = decode_reply(message, sent.nonce)
        if isinstance(reply, str):
            refused[reply] += 1
            return None
        site = self._identify(sent.node, nodes, reply)
        if reply.error is not None:
            refused[f"raised {reply.error}"] += 1
            if site is not None:
                self.seen[site] = reply.seen or _NOTHING  # it is shown what it lacks the next time
            return None
        if site is None:
            refused["foreign node"] += 1
            return None
        self._sites[sent.node] = site
        mine = set(self.registry.clients[site])
        for client, answer in reply.answers:
            if type(client) is int and client in mine:
                inbox.receive(client, answer)
            else:
                refused["foreign client"] += 1
        return dataclasses.replace(reply, site=site)

    def _identify(self, node: int, nodes: dict[int, str | None], reply: Reply) -> str | None:
        """Find the site of a node: by its key; without keys, for trying out, by its word."""
        if self.registry.keys:
            return nodes[node]
        return reply.site if reply.site in self.registry.clients else None


PATIENCE = 1.0
"""Seconds in one call after which a thread no longer counts."""

_PULLERS = 16
_NETWORK = {"httpx", "httpcore", "grpc"}  # what Flower's grid raises when the SuperLink is gone
# A reply by the name of its question, None in place of one that no decoding can read; an error ends the run.
_Fetched: TypeAlias = tuple[str, Message | None] | BaseException


@dataclass(kw_only=True)
class ReplyFetcher:
    """Threads that fetch the replies to one round's questions, each call for one reply.

    Attributes:
        grid: Flower's grid.
        poll: Seconds that a thread waits after it has looked in vain.
        n_asked: Number of nodes that were asked.
        waiting: Names of the questions that nobody asks about right now.
        found: Replies, and what ends the run.
        over: Set when nobody waits any more.
    """

    grid: Grid
    poll: float
    n_asked: int
    waiting: SimpleQueue[str] = field(default_factory=SimpleQueue)
    found: SimpleQueue[_Fetched] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)
    _since: dict[int, float] = field(default_factory=dict)
    _started_threads: int = 0

    def start_missing(self) -> None:
        """Start the threads that are missing: those that hang in a call count no more."""
        now = time.monotonic()
        hanging = sum(now - since > PATIENCE for since in list(self._since.values()))
        while self._started_threads - hanging < min(_PULLERS, self.n_asked):
            threading.Thread(target=self._fetch, args=(self._started_threads,), daemon=True).start()
            self._started_threads += 1

    def _fetch(self, worker: int) -> None:
        while not self.over.is_set():
            try:
                identity = self.waiting.get(timeout=self.poll)
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
                self.over.wait(self.poll)


def replies(grid: Grid, sent: Collection[str], *, poll: float, seconds: float) -> Iterator[tuple[str, Message | None]]:
    """Yield replies as they come, None for one that can't be read, until all are there or the time is up.

    Flower fetches the replies of one call together and waits for their parts, so one that can't be
    decoded would lose the others, and a node that announces a reply and never delivers it would hold
    them up. Every call therefore asks for one reply, and a thread that hangs in its call is left behind
    and replaced.

    Args:
        grid: Flower's grid.
        sent: Names of the questions.
        poll: Seconds that a thread waits after it has looked in vain.
        seconds: Seconds until nobody waits any more.

    Raises:
        RunError: If the SuperLink is out of reach.
    """
    fetcher = ReplyFetcher(grid=grid, poll=poll, n_asked=len(sent))
    for identity in sent:
        fetcher.waiting.put(identity)
    deadline = time.monotonic() + seconds
    left = set(sent)
    try:
        while left and (rest := deadline - time.monotonic()) > 0:
            fetcher.start_missing()
            try:
                item = fetcher.found.get(timeout=min(rest, PATIENCE))
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
