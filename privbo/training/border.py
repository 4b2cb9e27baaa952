"""Networks and records are tried before anything is paid, so that what can't be trained is refused in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from privbo.training.private_neural import MakeModel, Split


def require_trainable(models: Mapping[str, MakeModel], data: Split) -> None:
    """Refuse what no training could be made of; records are asked for their type, shape and classes only.

    Raises:
        ConfigurationError: Naming the network and what to change.
    """
    for name, maker in models.items():
        with torch.random.fork_rng(devices=[]):
            first, second = _made(name, maker), _made(name, maker)
            if _shared(first, second):
                raise ConfigurationError(
                    f"models[{name!r}] hands out the same network twice, so that one training would go on with "
                    "another's weights; make a new one at every call: lambda: nn.Linear(...)"
                )
            scores = _scores(name, first, data)
        if scores.ndim != 2 or len(scores) != 2:
            raise ConfigurationError(
                f"network {name!r} answers two records with the shape {tuple(scores.shape)}; it must give one row of "
                "classes' scores for each"
            )
        _require_classes(name, scores.shape[1], data)


def _made(name: str, maker: MakeModel) -> nn.Module:
    if isinstance(maker, nn.Module) or not callable(maker):
        raise ConfigurationError(
            f"models[{name!r}] is a {type(maker).__name__}, not a function that makes a network; "
            "write lambda: nn.Linear(...)"
        )
    made = maker()
    if not isinstance(made, nn.Module):
        raise ConfigurationError(f"models[{name!r}] makes a {type(made).__name__}; return a torch.nn.Module")
    return made


def _shared(first: nn.Module, second: nn.Module) -> bool:
    kept = {value.data_ptr() for value in first.state_dict().values() if _has_room(value)}
    return first is second or any(_has_room(v) and v.data_ptr() in kept for v in second.state_dict().values())


def _has_room(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _scores(name: str, model: nn.Module, data: Split) -> torch.Tensor:
    """Scores of two records of zeros, of the shape and type of the records."""
    x = data.train_x
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
    if x.is_floating_point() and x.dtype != weights:
        raise ConfigurationError(
            f"inputs are {x.dtype} and network {name!r} is {weights}; convert them: x.to({weights})"
        )
    try:
        with torch.no_grad():
            scores = model.to(x.device).eval()(x.new_zeros((2, *x.shape[1:])))
    except Exception as error:  # whatever a network of one's own raises
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(
            f"network {name!r} can't take inputs of shape {tuple(x.shape[1:])} and type {x.dtype} ({told}); "
            "let its first layer fit the inputs"
        ) from error
    if not isinstance(scores, torch.Tensor):
        raise ConfigurationError(f"network {name!r} returns a {type(scores).__name__}; return the classes' scores")
    return scores


def _require_classes(name: str, n_outputs: int, data: Split) -> None:
    for part, classes in (("train_y", data.train_y), ("validation_y", data.validation_y)):
        if classes.min() < 0 or classes.max() >= n_outputs:
            raise ConfigurationError(
                f"{part} has classes outside 0..{n_outputs - 1}, and network {name!r} has {n_outputs} outputs; "
                "give it one output per class, and number the classes from 0"
            )
