"""Both sides of any search for a common setting."""

from __future__ import annotations

from privbo.algorithms.common.clients import SearchClients
from privbo.algorithms.common.search import Search
from privbo.algorithms.common.server import SearchServer
from privbo.algorithms.common.settings import CommonSettings
from privbo.protocol.messages import Evaluate, IntArray, Setting


def server_of(settings: CommonSettings, search: Search, setting: Setting) -> SearchServer:
    """Make the public side."""
    return SearchServer(search, setting, alone=settings.alone)


def clients_of(
    settings: CommonSettings, search: Search, setting: Setting, clients: IntArray, evaluate: Evaluate
) -> SearchClients:
    """Make the private side for ``clients``."""
    return SearchClients(
        search,
        setting,
        alone=settings.alone,
        reward_range=settings.reward_range,
        clients=clients,
        evaluate=evaluate,
    )
