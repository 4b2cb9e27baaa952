"""Flower's grid without sockets: drives the same client app, through the same bytes."""

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from privbo.flower.messages import READY

# A real SuperNode is a process of its own. Here the server's threads would run several client apps at
# once, and np.load parses its header with ast, which is not safe in threads: CPython before 3.11.8 now
# and then raises "AST constructor recursion depth mismatch" (gh-106905), and the site looks absent.
_ONE_APP_AT_A_TIME = threading.Lock()
AT: ContextVar[int] = ContextVar("AT", default=0)
"""The node whose app is running, which elsewhere has a process of its own; 0 for the server."""


def through_bytes(message: Message) -> Message:
    """What arrives of a message at the other end."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.metadata.message_id, objects)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


def unavailable(reply: Message) -> Message:
    """What Flower says in a node's place when it is gone."""
    lost = Message(Error(code=5, reason="a secret"), reply_to=reply)
    lost.metadata.__dict__.update(reply.metadata.__dict__)
    return lost


@dataclass
class Node:
    """One SuperNode.

    ``tamper`` stands between its client app and the wire: it may change a reply, or lose it (None).
    """

    node_id: int
    app: Callable[[Message, Context], Message | None]
    node_config: dict[str, Any]
    run_config: dict[str, Any] = field(default_factory=dict)
    public_key: bytes = b""
    online: bool = True
    tamper: Callable[[Message, int], Message | None] = lambda reply, _: reply
    asked: list[Message] = field(default_factory=list)

    def handle(self, message: Message) -> Message | None:
        context = Context(
            run_id=1,
            node_id=self.node_id,
            node_config=self.node_config,
            state=RecordDict(),
            run_config=self.run_config,
        )
        if message.metadata.message_type != f"query.{READY}":
            self.asked.append(message)
        try:
            with _ONE_APP_AT_A_TIME:
                before = AT.set(self.node_id)
                try:
                    reply = self.app(message, context)
                finally:
                    AT.reset(before)
        except Exception as error:  # what Flower itself does with an app that raises
            reply = Message(Error(code=2, reason=str(error)), reply_to=message)
        return None if reply is None else self.tamper(reply, int(message.metadata.group_id))


class LoopGrid:
    """Every node in this process; replies are made when they are fetched, and all of them are kept.

    ``pushed`` is shown messages before they go: it may note them, bend them or raise.
    """

    def __init__(self, nodes: Iterable[Node], pushed: Callable[[list[Message]], object] = lambda _: None) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self._pushed = pushed
        self.replies: list[Message] = []
        self.greetings: list[Message] = []  # replies before the run is made
        self._waiting: dict[str, Message] = {}
        self._lock = threading.Lock()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_nodes(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.online]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities, listed = [], list(messages)
        self._pushed(listed)
        for message in listed:
            arrived = through_bytes(message)
            self._waiting[arrived.metadata.message_id] = arrived
            identities.append(arrived.metadata.message_id)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found, greetings = [], []
        for identity in message_ids:
            with self._lock:
                message = self._waiting.pop(identity, None)
            reply = None if message is None else self.nodes[message.metadata.dst_node_id].handle(message)
            if reply is not None:
                greets = message.metadata.message_type == f"query.{READY}"
                (greetings if greets else found).append(through_bytes(reply))
        self.replies += found
        self.greetings += greetings
        return found + greetings

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Records of the sites' replies."""
        found = [reply.content.config_records.get("answer") for reply in self.replies if reply.has_content()]
        return [dict(record) for record in found if record is not None]
