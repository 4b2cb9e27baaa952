"""Text of unknown origin as a terminal may show it."""

from __future__ import annotations

import unicodedata


def shown(text: str) -> str:
    r"""Write out control, format and unassigned characters, by which text would steer a terminal or hide.

    Spaces, and a line's end where it ends the text, stay.

    Example:
        >>> shown("run\x1b[2J of \u202eevil")
        'run\\x1b[2J of \\u202eevil'
    """
    end = "\n" if text.endswith("\n") else ""
    kept = (c if unicodedata.category(c)[0] != "C" else repr(c)[1:-1] for c in text.removesuffix("\n"))
    return "".join(kept) + end
