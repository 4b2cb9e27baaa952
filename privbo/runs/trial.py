"""One trial: a point that a client wants evaluated, and what was told of it. PRIVATE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from privbo.protocol.space import Value

State: TypeAlias = Literal["open", "told", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """PRIVATE: a point that a client wants evaluated; it belongs to that client.

    .. versionadded:: 0.3.0

    Attributes:
        number: Its name, for telling.
        client: Whose objective is to be evaluated.
        round: The round it was asked in.
        params: Values by name.
        unit: The same in the unit cube.
        state: ``"open"`` until it is told.
        value: What was told; None where nothing or a failure was.
        failure: Why there is no value; None where there is one, or none yet.
        steps: Values reported on the way, by step.
        asked_at: When it was asked for (UTC).
        told_at: When it was told (UTC).

    Example:
        >>> Trial(number=1, client=0, round=0, params={"x": 0.5}, unit=(0.5,)).state
        'open'
    """

    number: int
    client: int
    round: int
    params: dict[str, Value]
    unit: tuple[float, ...]
    state: State = "open"
    value: float | None = None
    failure: str | None = None
    steps: tuple[tuple[int, float], ...] = ()
    asked_at: str = ""
    told_at: str = ""
