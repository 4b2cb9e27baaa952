"""Algorithms by the name a configuration gives them: built-in, or ``package.module:Class`` of the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import Algorithm, Cohort, Evaluate, IntArray, Server, Setting
from privbo.protocol.settings import JsonObject, dump_settings, read_settings
from privbo.runs.sources import load_function


def algorithms() -> dict[str, type[Algorithm]]:
    """Give every built-in algorithm by its name in a configuration."""
    from privbo.algorithms.elimination.alone import PersonalElimination
    from privbo.algorithms.elimination.fed_pne import FedPNE
    from privbo.algorithms.elimination.parallel import ParallelXArmed
    from privbo.algorithms.elimination.pf_pne import PFPNE
    from privbo.algorithms.functional.federated import FederatedFLCB
    from privbo.algorithms.thompson.dp_fts_de import DPFTSDE
    from privbo.algorithms.thompson.scout import Scout
    from privbo.algorithms.thompson.shared_prior import SharedPrior

    return {
        "dp-fts-de": DPFTSDE,
        "f-lcb": FederatedFLCB,
        "fed-pne": FedPNE,
        "parallel": ParallelXArmed,
        "pe": PersonalElimination,
        "pf-pne": PFPNE,
        "scout": Scout,
        "shared-prior": SharedPrior,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignAlgorithm:
    """An algorithm of the user's as a table names it, not imported yet.

    Attributes:
        reference: ``package.module:Class``.
        table: Its settings.
    """

    reference: str
    table: JsonObject

    @property
    def caveat(self) -> str | None:
        """Nothing is known before it is loaded."""
        return None

    @property
    def is_certified(self) -> bool:
        """Nothing is known before it is loaded."""
        return False

    def load(self) -> Algorithm:
        """Import the class and make the algorithm.

        Raises:
            ConfigurationError: If there is no such class or it refuses its settings.
        """
        kind = load_function(self.reference, "algorithm.type")
        if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
            raise ConfigurationError(f"algorithm.type={self.reference!r} is no dataclass; name one with settings")
        made = cast("Algorithm", read_settings(kind, self.table, "algorithm"))
        require_algorithm(made)
        return made

    def server(self, setting: Setting) -> Server:  # noqa: ARG002  # the protocol has it
        """Refuse: the class is not loaded."""
        raise self.not_loaded()

    def cohort(
        self,
        setting: Setting,  # noqa: ARG002  # the protocol has it
        *,
        clients: IntArray,  # noqa: ARG002  # the protocol has it
        evaluate: Evaluate,  # noqa: ARG002  # the protocol has it
        seed: int,  # noqa: ARG002  # the protocol has it
    ) -> Cohort:
        """Refuse: the class is not loaded."""
        raise self.not_loaded()

    def local(self) -> Algorithm:
        """Refuse: the class is not loaded."""
        raise self.not_loaded()

    def not_loaded(self) -> RunError:
        """Give the refusal to import the class unasked."""
        return RunError(f"Not importing {self.reference} without --trust (trust=True in Python).")


def read_algorithm(table: Mapping[str, object]) -> Algorithm:
    """Read an ``[algorithm]`` table; a class of the user's is named, not imported.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    kinds, name = algorithms(), table.get("type")
    settings = {key: value for key, value in table.items() if key != "type"}
    if isinstance(name, str) and ":" in name:
        return ForeignAlgorithm(reference=name, table=cast("JsonObject", settings))
    if name == "dp-fts-de":
        settings = _without_variants(settings)
    if name not in kinds:
        raise ConfigurationError(
            f"algorithm.type={name!r} is unknown; allowed: {', '.join(sorted(kinds))}, or package.module:Class"
        )
    return read_settings(kinds[str(name)], settings, "algorithm")


# Settings that DP-FTS-DE had up to 0.2.0, each with the value that is the paper's.
_VARIANTS: JsonObject = {
    "share": "sample",
    "federated_step": "shared",
    "local_after": None,
    "values": "standardised",
    "repeats": "query",
}


def _without_variants(table: Mapping[str, object]) -> dict[str, object]:
    """Refuse what DP-FTS-DE is no longer; what the paper has anyway may still be said."""
    gone = {key: table[key] for key in _VARIANTS if key in table and table[key] != _VARIANTS[key]}
    for key, value in gone.items():
        raise ConfigurationError(
            f"algorithm.{key}={value!r} departs from DP-FTS-DE as the paper has it and is gone; use shared-prior, "
            "which shares means, or privbo 0.2.0 for what was made with it"
        )
    return {key: value for key, value in table.items() if key not in _VARIANTS}


def algorithm_table(algorithm: Algorithm, *, defaults: bool = True) -> JsonObject:
    """Give an algorithm as the ``[algorithm]`` table that names it.

    Args:
        algorithm: Its settings.
        defaults: As in ``dump_settings``. A class of the user's is written out in full either way: who
            reads the table does not import the class, so its defaults are not known to everybody.
    """
    if isinstance(algorithm, ForeignAlgorithm):
        return {"type": algorithm.reference, **algorithm.table}
    kind = type(algorithm)
    names = {built_in: name for name, built_in in algorithms().items()}
    reference = names.get(kind, f"{kind.__module__}:{kind.__qualname__}")
    if not dataclasses.is_dataclass(algorithm):
        raise ConfigurationError(
            f"algorithm={algorithm!r} is no dataclass, so its settings can't be recorded; make it one"
        )
    return {**dump_settings(algorithm, defaults=defaults or kind not in names), "type": reference}


def require_algorithm(value: object) -> None:
    """Refuse what is no algorithm, such as the class instead of its settings.

    Raises:
        ConfigurationError: Saying what was given.
    """
    if isinstance(value, type):
        raise ConfigurationError(f"algorithm={value.__name__} is a class; give its settings: {value.__name__}()")
    missing = [name for name in ("server", "cohort", "local", "caveat", "is_certified") if not hasattr(value, name)]
    if missing:
        raise ConfigurationError(
            f"algorithm={value!r}: input should be an algorithm, with {', '.join(missing)}; use DPFTSDE() or another"
        )
