"""A training as it was asked for, written down so that whoever resumes it asks for the same.

Names, layers, shapes and optimisers are settings and stand in ``search.json``. A digest of the records would tell
whoever guesses them whether the guess is right, so it stays in ``private/``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from privbo.protocol.errors import RunError
from privbo.protocol.files import private_folder, read_json, write_json
from privbo.protocol.settings import JsonObject

if TYPE_CHECKING:
    from torch import nn

    from privbo.training.private_neural import MakeModel, MakeOptimiser, Split

_DATA = "data.json"
_PLAIN = (bool, int, float, str, tuple, type(None))


def settle(directory: Path | None, described: JsonObject, *, resume: bool, data: Split | None = None) -> None:
    """Write a search's description down, or hold it against the one that is resumed.

    Raises:
        RunError: If a search stands there and isn't to be resumed, or was another one: the first difference is named.
    """
    if directory is None:
        if resume:
            raise RunError("only a search with a directory can be resumed; name it")
        return
    path = directory / "search.json"
    if resume:
        _require_same(directory, path, described)
        _require_same_records(directory, data)
        return
    if path.exists():
        raise RunError(f"{directory} already holds a search; resume it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    if data is not None:
        write_json(private_folder(directory) / _DATA, _digests(data))
    write_json(path, described)


def _require_same(directory: Path, path: Path, described: JsonObject) -> None:
    if not path.exists():
        raise RunError(f"{directory} holds no search to resume; leave resume out to begin one")
    if (told := _difference(read_json(path), described)) is not None:
        raise RunError(f"{directory} holds a search with {told}; resume it as it was, or name another directory")


def _require_same_records(directory: Path, data: Split | None) -> None:
    if data is None:
        return
    path = directory / "private" / _DATA
    if not path.exists():
        raise RunError(f"{path} is gone, which says what records {directory} was made with; restore it from a copy")
    kept, now = read_json(path), _digests(data)
    if other := sorted(part for part in now if kept.get(part) != now[part]):
        raise RunError(
            f"{directory} was made with other records in {', '.join(other)}; resume it with the same ones, or name "
            "another directory"
        )


def network(model: MakeModel, optimiser: MakeOptimiser) -> JsonObject:
    """Describe a network and its optimiser: layers with their settings, shapes, and what departs from defaults."""
    with torch.random.fork_rng(devices=[]):
        made = model()
    steps = optimiser(made.parameters())
    kind = type(steps)
    return {
        "layers": {name or "network": _layer(layer) for name, layer in made.named_modules()},
        "shapes": {name: _shape(value) for name, value in made.state_dict().items()},
        "optimiser": {"kind": kind.__name__, "groups": [_departures(kind, group) for group in steps.param_groups]},
    }


def _layer(layer: nn.Module) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in _departures(type(layer), vars(layer)).items())
    return f"{type(layer).__name__}({settings})"


def _departures(kind: type, values: Mapping[str, object]) -> JsonObject:
    """Settings by their text where they depart from the class's defaults, so that a newer torch says the same."""
    defaults = {name: setting.default for name, setting in inspect.signature(kind).parameters.items()}
    return {
        name: repr(values[name])
        for name, default in defaults.items()
        if name in values and isinstance(values[name], _PLAIN) and values[name] != default
    }


def _shape(value: object) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _digests(data: Split) -> JsonObject:
    """PRIVATE: SHA-256 of every part of the records."""
    return {name: _digest(getattr(data, name)) for name in ("train_x", "train_y", "validation_x", "validation_y")}


def _digest(values: torch.Tensor) -> str:
    raw = values.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(_shape(values).encode() + raw.numpy().tobytes()).hexdigest()


def _difference(kept: object, asked: object, at: str = "") -> str | None:
    """Say where two descriptions first differ; None where they don't."""
    if isinstance(kept, dict) and isinstance(asked, dict):
        for name, value in cast("JsonObject", asked).items():
            inner = f"{at}.{name}" if at else name
            if (told := _difference(kept.get(name), value, inner)) is not None:
                return told
        gone = [name for name in kept if name not in asked] if at else []
        return f"{at}.{gone[0]} = {kept[gone[0]]!r}, now there is none" if gone else None
    return None if kept == asked else f"{at} = {kept!r}, now it is {asked!r}"
