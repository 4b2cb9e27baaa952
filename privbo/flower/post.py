"""Threads that fetch the replies of one round from Flower's grid, each call for one reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from privbo.protocol.errors import RunError

PATIENCE = 1.0
"""Seconds in one call after which a thread no longer counts."""

_PULLERS = 16
_NETWORK = {"httpx", "httpcore", "grpc"}  # what Flower's grid raises when the SuperLink is gone
# A reply by the name of its question, None in place of one that no decoding can read; an error ends the run.
_Fetched: TypeAlias = tuple[str, Message | None] | BaseException


@dataclass(kw_only=True)
class Post:
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
    _hired: int = 0

    def staff(self) -> None:
        """Start the threads that are missing: those that hang in a call count no more."""
        now = time.monotonic()
        hanging = sum(now - since > PATIENCE for since in list(self._since.values()))
        while self._hired - hanging < min(_PULLERS, self.n_asked):
            threading.Thread(target=self._fetch, args=(self._hired,), daemon=True).start()
            self._hired += 1

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
    post = Post(grid=grid, poll=poll, n_asked=len(sent))
    for identity in sent:
        post.waiting.put(identity)
    deadline = time.monotonic() + seconds
    left = set(sent)
    try:
        while left and (rest := deadline - time.monotonic()) > 0:
            post.staff()
            try:
                item = post.found.get(timeout=min(rest, PATIENCE))
            except Empty:
                continue
            if isinstance(item, BaseException):
                raise RunError(f"the SuperLink is out of reach ({type(item).__name__}); run the app again") from item
            if item[0] in left:
                left.discard(item[0])
                yield item
    finally:
        post.over.set()


def _is_gone(error: Exception) -> bool:
    """Whether an error of the grid means that the SuperLink is out of reach, rather than one reply's being bad."""
    network = type(error).__module__.split(".")[0] in _NETWORK
    return isinstance(error, OSError) or (network and not hasattr(error, "response"))
