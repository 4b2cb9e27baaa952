"""Runs over Flower: the apps both sides load, and what starts them. Needs the extra ``flower``."""

from privbo.federation.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
