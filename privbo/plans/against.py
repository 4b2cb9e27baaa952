"""Settings that guardians can carry, and how many of their noises somebody does not know."""

from __future__ import annotations

from typing import Literal, TypeAlias

from privbo.protocol.errors import ConfigurationError

# Who looks: the server with all guardians but one, one guardian, or whoever reads what is broadcast.
Against: TypeAlias = Literal["coalition", "guardian", "outsiders"]

# Who may see a client's vector.
Trust: TypeAlias = Literal["server", "guardians"]


def unknown_noises(against: Against, n_guardians: int) -> int:
    """Give the number of noises that somebody does not know.

    Example:
        >>> [unknown_noises(who, 3) for who in ("coalition", "guardian", "outsiders")]
        [1, 2, 3]
    """
    return {"coalition": 1, "guardian": max(1, n_guardians - 1), "outsiders": n_guardians}[against]


def require_shareable(sampling: str, channel: str, *, adapts: bool) -> None:
    """Refuse settings that need a party who sees vectors or knows the sample.

    Raises:
        ConfigurationError: Naming the setting and the reason.
    """
    if sampling != "poisson":
        raise ConfigurationError(
            f"sampling={sampling!r} needs a party that draws and knows the sample, and with trust='guardians' "
            "there is none; use sampling='poisson', where each client draws its own coin"
        )
    if adapts:
        raise ConfigurationError(
            "adaptive_clipping moves the bound from round to round by the server's word, and guardians go by the plan "
            "that they hold themselves; drop it, or set privacy.trust='server'"
        )
    if channel != "open":
        raise ConfigurationError(
            f"channel={channel!r}: with trust='guardians' nobody knows who was drawn, so ciphertexts of one size are "
            "sent in every round; use channel='open'"
        )
