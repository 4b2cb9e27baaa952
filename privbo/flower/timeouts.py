"""Waiting times of a federation's server, and the number of sites it waits for."""

from __future__ import annotations

from privbo.protocol.settings import Count, Positive, settings


@settings(table="federation")
class Timeouts:
    """Waiting times of a federation, and the number of sites it waits for; public.

    Attributes:
        round_timeout: Seconds from asking to the end of a round; also the messages' time to live.
        start_timeout: Seconds to wait for nodes before the first round, and later while fewer
            than ``min_sites`` are connected.
        min_sites: Nodes without which no round is played.
        poll: Seconds between two looks at the grid.

    Raises:
        ConfigurationError: If a time is not a finite number of seconds above 0 or ``min_sites`` is below 1.
    """

    round_timeout: Positive = 300.0
    start_timeout: Positive = 300.0
    min_sites: Count = 1
    poll: Positive = 0.3
