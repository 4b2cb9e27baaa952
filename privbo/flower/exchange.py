"""Questions over Flower's grid and the replies that come in time; whatever arrives, no reply loses another."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from privbo.flower.messages import Asked, Replied, decode_reply, encode
from privbo.flower.registry import Federation
from privbo.protocol.errors import RunError

POLL = 0.3  # seconds between two looks at the grid
_PATIENCE = 1.0  # seconds in one call after which a thread no longer counts
_PULLERS = 16
_NETWORK = {"httpx", "httpcore", "grpc"}  # what Flower's grid raises when the SuperLink is gone
# A reply by the name of its question, None in place of one that no decoding can read; an error ends the run.
_Fetched: TypeAlias = tuple[str, Message | None] | BaseException


def exchange(
    grid: Grid,
    questions: Mapping[int, Asked],
    kind: type[Replied],
    federation: Federation,
    *,
    group: str,
    seconds: float | None = None,
) -> Iterator[tuple[int, bytes, Replied | str]]:
    """Push a question to every node, each with a nonce of its own; yield what comes back in time, read.

    Args:
        grid: Flower's grid.
        questions: By node.
        kind: The replies' type; what is none is given as the reason (PRIVATE).
        federation: Waiting times.
        group: Name of the questions: the round's number.
        seconds: Time until replies are awaited no longer, and questions live; a round's unless said otherwise.

    Raises:
        RunError: If the SuperLink takes no question, or is out of reach.
    """
    ttl = seconds or federation.round_timeout
    asked = [(node, secrets.token_bytes(16)) for node in questions]
    messages = [
        Message(encode(questions[node], nonce), node, f"query.{questions[node].action}", ttl=ttl, group_id=group)
        for node, nonce in asked
    ]
    # Flower gives an empty name to a message it could not take, such as one to a node that has just left.
    sent = {name: one for name, one in zip(grid.push_messages(messages), asked, strict=False) if name}
    if asked and not sent:
        raise RunError("the SuperLink takes no question; look at its log and run the app again")
    for name, message in _replies(grid, sent, ttl):
        node, nonce = sent[name]
        yield node, nonce, decode_reply(kind, message, nonce)


def _replies(grid: Grid, sent: Collection[str], seconds: float) -> Iterator[tuple[str, Message | None]]:
    """Yield replies as they come, None for one that can't be read, until all are there or the time is up.

    Flower fetches the replies of one call together and waits for their parts, so one that can't be
    decoded would lose the others, and a node that announces a reply and never delivers it would hold
    them up. Every call therefore asks for one reply, and a thread that hangs in its call is left behind
    and replaced.
    """
    waiting, found, since, over = SimpleQueue[str](), SimpleQueue[_Fetched](), dict[int, float](), threading.Event()
    for name in sent:
        waiting.put(name)
    deadline, left, n_threads = time.monotonic() + seconds, set(sent), 0
    try:
        while left and (rest := deadline - time.monotonic()) > 0:
            now = time.monotonic()
            hanging = sum(now - start > _PATIENCE for start in list(since.values()))
            while n_threads - hanging < min(_PULLERS, len(sent)):
                threading.Thread(target=_fetch, args=(grid, waiting, found, since, over), daemon=True).start()
                n_threads += 1
            try:
                item = found.get(timeout=min(rest, _PATIENCE))
            except Empty:
                continue
            if isinstance(item, BaseException):
                raise RunError(f"the SuperLink is out of reach ({type(item).__name__}); run the app again") from item
            if item[0] in left:
                left.discard(item[0])
                yield item
    finally:
        over.set()


def _fetch(
    grid: Grid, waiting: SimpleQueue[str], found: SimpleQueue[_Fetched], since: dict[int, float], over: threading.Event
) -> None:
    """Fetch replies, each call for one, until it is over; ``since`` says when each thread in a call began it."""
    while not over.is_set():
        try:
            name = waiting.get(timeout=POLL)
        except Empty:
            continue
        since[threading.get_ident()] = time.monotonic()
        try:
            fetched = list(grid.pull_messages([name]))
        except Exception as error:  # what a node sent may break Flower's own decoding
            network = type(error).__module__.split(".")[0] in _NETWORK
            if isinstance(error, OSError) or (network and not hasattr(error, "response")):
                found.put(error)
                return
            found.put((name, None))  # Flower hands every reply out once: this one is lost
            continue
        finally:
            del since[threading.get_ident()]
        for message in fetched:
            found.put((message.metadata.reply_to_message_id, message))
        if not fetched:
            waiting.put(name)
            # However many are asked, so many looks in vain a second and no more: each costs the SuperLink a call.
            over.wait(POLL)
