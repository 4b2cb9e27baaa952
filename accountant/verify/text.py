"""Text of unknown origin as a terminal may show it: the one function that all commands print through."""

from __future__ import annotations

import unicodedata

_LINES = {"\u2028", "\u2029"}  # separators of lines and paragraphs, which are of another category


def shown(text: str) -> str:
    r"""Write out control, format, unassigned and line-ending characters, by which text would steer a terminal or hide.

    A line's end is written out, too, or a name would forge lines: whoever prints a line adds its end.

    Example:
        >>> shown("run\x1b[2J of \u202eevil\n")
        'run\\x1b[2J of \\u202eevil\\n'
    """
    return "".join(repr(c)[1:-1] if _steers(c) else c for c in text)


def shown_lines(text: str) -> str:
    r"""Write out what steers a terminal in a text of several lines, of which every line's end is our own.

    Example:
        >>> shown_lines("a = 1\nb = '\x7f'\n")
        "a = 1\nb = '\\x7f'\n"
    """
    return "\n".join(map(shown, text.split("\n")))


def _steers(character: str) -> bool:
    return character in _LINES or unicodedata.category(character)[0] == "C"
