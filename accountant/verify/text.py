"""Text of unknown origin as a terminal may show it: the one function that all commands print through."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from decimal import Decimal

_DUST = 1e-9  # of the last digit: what floating-point arithmetic leaves
_LINES = {"\u2028", "\u2029"}  # separators of lines and paragraphs, which are of another category


def shown(text: str) -> str:
    r"""Write out control, format, unassigned and line-ending characters, by which text would steer a terminal or hide.

    A line's end is written out, too, or a name would forge lines: the caller adds the end of each line.

    Example:
        >>> shown("run\x1b[2J of \u202eevil\n")
        'run\\x1b[2J of \\u202eevil\\n'
    """
    return "".join(repr(c)[1:-1] if c in _LINES or unicodedata.category(c)[0] == "C" else c for c in text)


def shown_lines(text: str) -> str:
    r"""Write out what steers a terminal in a text of several lines, of which every line's end is our own.

    Example:
        >>> shown_lines("a = 1\nb = '\x7f'\n")
        "a = 1\nb = '\\x7f'\n"
    """
    return "\n".join(map(shown, text.split("\n")))


def at_most(value: float, digits: int = 4) -> str:
    """Write an upper bound, rounded up so that it stays one.

    Example:
        >>> at_most(3.2500238), at_most(float("inf"))
        ('3.251', 'infinite')
    """
    return _rounded(value, digits, math.ceil, -_DUST)


def at_least(value: float, digits: int = 4) -> str:
    """Write a lower bound, rounded down so that it stays one.

    Example:
        >>> at_least(3.2509), at_least(0.0)
        ('3.25', '0')
    """
    return _rounded(value, digits, math.floor, _DUST)


def _rounded(value: float, digits: int, towards: Callable[[float], int], dust: float) -> str:
    if value == 0.0 or not math.isfinite(value):
        return {math.inf: "infinite", 0.0: "0"}.get(value, "no number")
    unit = math.floor(math.log10(abs(value))) - digits + 1  # a power of ten, which the smallest floats have none of
    return f"{float(Decimal(towards(float(Decimal(value).scaleb(-unit)) + dust)).scaleb(unit)):.{digits}g}"
