"""Clients on other machines: one round over Flower's grid.

Every registered client is asked in every round, whoever takes part: the sample is drawn
by the door and never leaves it, so neither the network nor a site learns who was sampled.
A round ends when every node that was asked has answered or failed, or at its timeout.
Whatever is late, duplicate, foreign or malformed is an absence, and an absence changes
neither the noise nor what the sum is divided by.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from privbo.door.inbox import Inbox
from privbo.flower.messages import MESSAGE_TYPE, Header, Reply, decode_reply, encode_question
from privbo.flower.registry import Registry
from privbo.flower.site import Question
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Ask, FloatArray

_PULLERS = 16
_NETWORK = {"httpx", "httpcore", "grpc"}  # what Flower's grid raises when the SuperLink is gone
_UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited; public.

    Attributes:
        round_timeout: Seconds from asking to the end of a round; also the messages' time to live.
        start_timeout: Seconds to wait for nodes before the first round, and later while fewer
            than ``min_sites`` are there.
        min_sites: Nodes without which no round is played.
        poll: Seconds between two looks.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    round_timeout: float = 300.0
    start_timeout: float = 300.0
    min_sites: int = 1
    poll: float = 0.3

    def __post_init__(self) -> None:
        for name in ("round_timeout", "start_timeout", "poll"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}={value!r} must be a finite number of seconds > 0")
        if self.min_sites < 1:
            raise ConfigurationError(f"min_sites={self.min_sites!r} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class _Sent:
    node: int
    nonce: bytes


@dataclass(kw_only=True)
class Flower:
    """The server's end of the wire.

    Attributes:
        grid: Flower's grid.
        header: What every question repeats about the run.
        registry: Which clients live where.
        patience: How long is waited.
        note: Told PRIVATE counts after every round: who answered, what was refused and why.
    """

    grid: Grid
    header: Header
    registry: Registry
    patience: Patience
    note: Callable[[dict[str, Any]], None]
    _started: bool = field(default=False, init=False)

    def collect(self, ask: Ask) -> FloatArray:
        """Every client's answer, ``(n_clients, dim)``, NaN where none arrived.

        Raises:
            RunError: If fewer than ``min_sites`` nodes are there or the SuperLink is gone; the
                run can be resumed.
        """
        nodes = self._gather()
        dim = 0 if ask.request is None else ask.request.dim
        question = Question(run=self.header.run, broadcast=ask.broadcast, dim=dim)
        inbox = Inbox(round=ask.broadcast.round, n_clients=self.registry.n_clients, dim=max(dim, 1))
        refused: Counter[str] = Counter()
        answered: set[str] = set()
        started = time.monotonic()
        sent = self._push(question, nodes)
        for identity, message in self._replies(sent):
            if message is None:
                refused[_UNREADABLE] += 1
            elif (site := self._take(sent[identity], message, nodes, inbox, refused)) is not None:
                answered.add(site)
        if refused[_UNREADABLE] == len(sent):
            raise RunError(
                "the SuperLink takes no question or hands out no reply; look at its log and run the app again"
            )
        rows = inbox.close()
        self.note(
            {
                "round": ask.broadcast.round,
                "asked": len(sent),
                "answered": sorted(answered),
                "refused": dict(refused + Counter(inbox.refused)),
                "seconds": round(time.monotonic() - started, 3),
            }
        )
        return rows[:, :dim]

    def _gather(self) -> dict[int, str | None]:
        """Nodes that are there, each with the site its key proves (None without keys)."""
        wanted = self.patience.min_sites if self._started else len(self.registry.sites)
        deadline = time.monotonic() + self.patience.start_timeout
        nodes = self._nodes()
        while len(nodes) < wanted and time.monotonic() < deadline:
            time.sleep(self.patience.poll)
            nodes = self._nodes()
        if len(nodes) < self.patience.min_sites:
            raise RunError(
                f"{len(nodes)} of {len(self.registry.sites)} sites are connected and min_sites is "
                f"{self.patience.min_sites}; start their SuperNodes and run the app again: it goes on here"
            )
        self._started = True
        return nodes

    def _nodes(self) -> dict[int, str | None]:
        found = list(self.grid.get_nodes())
        if not self.registry.keys:
            return {int(node.node_id): None for node in found}
        sites = {int(node.node_id): self.registry.site_with(bytes(node.public_key)) for node in found}
        return {node: site for node, site in sites.items() if site is not None}

    def _push(self, question: Question, nodes: dict[int, str | None]) -> dict[str, _Sent]:
        letters = [_Sent(node=node, nonce=secrets.token_bytes(16)) for node in nodes]
        messages = [
            Message(
                encode_question(self.header, question, letter.nonce),
                letter.node,
                MESSAGE_TYPE,
                ttl=self.patience.round_timeout,
                group_id=str(question.broadcast.round),
            )
            for letter in letters
        ]
        identities = list(self.grid.push_messages(messages))
        # Flower gives an empty name to a message it could not take, such as one to a node that has just left.
        return {identity: letter for identity, letter in zip(identities, letters, strict=False) if identity}

    def _replies(self, sent: dict[str, _Sent]) -> Iterator[tuple[str, Message | None]]:
        """Replies as they come, None for one that can't be read, until all are there or the time is up.

        Flower waits for the parts of a reply in the same call that fetches it, so a node that
        announces a reply and never delivers it would hold up everyone. Several threads fetch, each
        for its own nodes, and those that hang are left behind.
        """
        deadline = time.monotonic() + self.patience.round_timeout
        found: SimpleQueue[tuple[str, Message | None] | BaseException | None] = SimpleQueue()
        groups = [list(sent)[start::_PULLERS] for start in range(min(_PULLERS, len(sent)))]
        for group in groups:
            threading.Thread(target=self._pull, args=(group, deadline, found), daemon=True).start()
        waiting, fetching = set(sent), len(groups)
        while waiting and fetching and (left := deadline - time.monotonic()) > 0:
            try:
                item = found.get(timeout=left)
            except Empty:
                return
            if item is None:
                fetching -= 1
            elif isinstance(item, BaseException):
                raise RunError(f"the SuperLink is out of reach ({type(item).__name__}); run the app again") from item
            elif item[0] in waiting:
                waiting.discard(item[0])
                yield item

    def _pull(self, identities: Sequence[str], deadline: float, found: SimpleQueue[Any]) -> None:
        waiting = set(identities)
        while waiting and time.monotonic() < deadline:
            try:
                for message in self.grid.pull_messages(sorted(waiting)):
                    identity = message.metadata.reply_to_message_id
                    waiting.discard(identity)
                    found.put((identity, message))
            except Exception as error:  # what a node sent may break Flower's own decoding
                if _is_gone(error):
                    found.put(error)
                    return
                if len(identities) == 1:  # Flower hands every reply out once: this one is lost
                    found.put((identities[0], None))
                    break
            time.sleep(self.patience.poll)
        found.put(None)

    def _take(
        self, sent: _Sent, message: Message, nodes: dict[int, str | None], inbox: Inbox, refused: Counter[str]
    ) -> str | None:
        """Put one node's answers into the inbox; the site, if there was an answer from it."""
        reply = decode_reply(message, sent.nonce)
        if isinstance(reply, str):
            refused[reply] += 1
            return None
        site = self._identify(sent.node, nodes, reply)
        if site is None:
            refused["foreign node"] += 1
            return None
        mine = set(self.registry.clients[site])
        for client, answer in reply.answers:
            if type(client) is int and client in mine:
                inbox.receive(client, answer)
            else:
                refused["foreign client"] += 1
        return site

    def _identify(self, node: int, nodes: dict[int, str | None], reply: Reply) -> str | None:
        """The site a node is: by its key; without keys, for trying out, by its word."""
        if self.registry.keys:
            return nodes[node]
        return reply.site if reply.site in self.registry.clients else None


def _is_gone(error: Exception) -> bool:
    """Whether an error of the grid means that the SuperLink is out of reach, rather than one reply's being bad."""
    network = type(error).__module__.split(".")[0] in _NETWORK
    return isinstance(error, OSError) or (network and not hasattr(error, "response"))
