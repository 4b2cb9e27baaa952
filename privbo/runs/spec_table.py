"""The shape of a run's table, as TOML, JSON and a run's manifest have it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from privbo.plans.policy import Policy
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.common import Final
from privbo.protocol.problem import ProblemSource
from privbo.protocol.settings import NAME, Count, JsonObject, Positive, Sequence, settings
from privbo.runs.attendance import Attendance
from privbo.runs.grid import Times

Control = Literal["local", "zeroed"]
FinalShare: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
FINAL_SHARE = 0.1


@settings(table="")
class SpecTable:
    """The shape of a run's table; ``Spec`` holds the objects."""

    name: Annotated[str, Field(pattern=NAME)]
    rounds: Count
    problem: ProblemSource
    algorithm: JsonObject
    privacy: JsonObject
    seed: Annotated[int, Field(ge=0)] | None = None
    device: str = "cpu"
    threads: Count = 1
    final: Final | None = None
    final_share: FinalShare = FINAL_SHARE
    control: Literal["zeroed"] | None = None
    controls: Sequence[Control] = ()
    ledger: SharedLedger | None = None
    policy: Policy | None = None
    attendance: Attendance | None = None
    times: Times | None = None
    evaluation_seconds: Positive | None = None
    executor: str = "serial"
    jobs: Count | None = None
    directory: str | None = None
