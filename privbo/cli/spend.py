"""Agreement before a command spends privacy that no plan has paid for."""

from __future__ import annotations

import sys

import typer

from privbo.protocol.errors import ConfigurationError


def agree(words: str, *, yes: bool) -> None:
    """Show a price on standard error and ask; ``--yes`` has answered.

    Raises:
        ConfigurationError: If the answer is no, or nobody is there to ask.
    """
    typer.echo(f"privbo: {words}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was charged; add --yes to pay that")
    if not typer.confirm("Pay that?", err=True):
        raise ConfigurationError("nothing was charged")
