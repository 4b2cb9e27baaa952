"""A sweep's file: one problem or several, settings by grid or by name, and what is measured.

A sweep file::

    name = "levels"
    config = "quickstart.toml"                  # beside this file; or a [base] table
    seeds = 5                                   # 0..4, or a list
    seed_keys = ["problem.arguments.seed"]      # also set to the cell's seed
    data = "public"                             # or "simulated", "proxy", "private"
    controls = ["local", "non-private"]
    [grid]
    "privacy.epsilon" = [0.5, 1, 2, 4, 8]

Instead of a grid, or beside it, arms with names of their own; contrasts are paired differences::

    measure = "cumulative regret"
    contrasts = [["two regions", "one region"]]
    [[arms]]
    label = "two regions"
    overrides = { algorithm.n_regions = 2 }
    [[arms]]
    label = "one region"
    [[panels]]                                  # several problems: one comparison each
    name = "wards"
    config = "wards.toml"
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from privbo.comparisons.choice import Selection
from privbo.comparisons.setting import Data, Kind, Measure
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.settings import NAME, Count, JsonObject, Sequence, settings

Control = Literal["local", "non-private", "zeroed"]


@settings(table="arms")
class ArmConfig:
    """A setting with a name of its own.

    Attributes:
        label: Its name.
        kind: A private setting, or one of the controls.
        config: Another run configuration to start from, beside the sweep's file.
        algorithm: Replaces the whole ``[algorithm]`` table.
        privacy: Replaces the whole ``[privacy]`` table.
        overrides: Single keys, dotted or nested, that are set on top.
    """

    label: str
    kind: Kind = "private"
    config: str | None = None
    algorithm: JsonObject | None = None
    privacy: JsonObject | None = None
    overrides: JsonObject = Field(default_factory=dict)


@settings(table="panels")
class PanelConfig:
    """One of several problems of a study; what it leaves out is the study's.

    Attributes:
        name: Shown as its title.
        config: Its run configuration, beside the sweep's file.
        overrides: Single keys, dotted or nested, that are set on top.
        arms: Arms of this panel alone; one that bears the name of the study's replaces it.
        seeds: Number or list of seeds.
        first_seed: Seeds start here where their number is given.
        judge: As the study's.
        small: As the study's.
    """

    name: str
    config: str | None = None
    overrides: JsonObject = Field(default_factory=dict)
    arms: Sequence[ArmConfig] = ()
    seeds: int | Sequence[int] | None = None
    first_seed: int | None = None
    judge: str | None = None
    small: JsonObject = Field(default_factory=dict)


@settings(table="sweep")
class SweepConfig:
    """A sweep's file.

    Attributes:
        name: Shown in titles; letters, digits, dots, dashes.
        config: Run configuration beside this file, or else ``base``.
        base: The same as a table.
        seeds: Number or list of seeds.
        first_seed: Seeds start here where their number is given.
        seed_keys: Dotted keys that are set to the cell's seed too, such as ``problem.arguments.seed``, so that a
            factory deals other clients with every seed.
        data: Whose data the clients hold; private unless the file says otherwise. Only over private data
            is noise secret: elsewhere it is seeded and protects nobody.
        controls: By default ``["local", "non-private"]`` beside a grid, none beside arms alone, and
            ``["local"]`` on private data.
        measure: What a setting is judged by; regret needs a problem that states ``best_values``.
        judge: ``module:function`` that makes losses of evaluations, called with a run's
            ``ClientHistory`` and the problem's arguments, ``(n_clients, n_evaluations)``; by default
            a loss is 1 - score.
        statement: What is to be shown, in a sentence.
        contrasts: Pairs of labels whose difference is the point.
        grid: Dotted keys and lists of their values; settings are all combinations.
        arms: Settings by name.
        panels: Several problems instead of one.
        small: Overrides of the small version of an experiment of ours; ``privbo compare`` plays none.
        small_seeds: Its number of seeds.
        ledger: The population's ledger; private data only.
        selection: How a choice on private data is paid for.

    Raises:
        ConfigurationError: If a value is not allowed, or two contradict each other.
    """

    name: Annotated[str, Field(pattern=NAME)]
    config: str | None = None
    base: JsonObject | None = None
    seeds: int | Sequence[int] = 5
    first_seed: int = 0
    seed_keys: Sequence[str] = ()
    data: Data = "private"
    controls: Sequence[Control] | None = None
    measure: Measure = "mean over rounds"
    judge: str | None = None
    statement: str = ""
    contrasts: Sequence[Sequence[str]] = ()
    grid: JsonObject = Field(default_factory=dict)
    arms: Sequence[ArmConfig] = ()
    panels: Sequence[PanelConfig] = ()
    small: JsonObject = Field(default_factory=dict)
    small_seeds: Count = 2
    ledger: SharedLedger | None = None
    selection: Selection | None = None
