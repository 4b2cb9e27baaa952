"""Agreement before a command spends privacy that no plan of a run has paid for."""

from __future__ import annotations

import sys

import typer

from privbo.cli.options import say
from privbo.plans.spending import Spending
from privbo.protocol.errors import ConfigurationError


def agree(price: Spending | None, *, yes: bool) -> None:
    """Show a price and the new total on standard error and ask; ``yes`` has answered, and nothing to pay asks nobody.

    Raises:
        ConfigurationError: If the answer is no, or nobody is there to ask.
    """
    if price is None:
        return
    say(f"privbo: {price.words}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was charged; add --yes to pay that")
    if not typer.confirm("Pay that?", err=True):
        raise ConfigurationError("nothing was charged")
