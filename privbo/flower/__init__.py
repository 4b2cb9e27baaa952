"""Runs over Flower: the apps both sides load, and what starts them. Needs the extra ``flower``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privbo.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module attribute may be anything
    if name in __all__:
        from privbo.flower import apps

        return getattr(apps, name)
    raise AttributeError(name)
