"""Values and texts of a study's repeated tables, filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping


def filled(value: object, row: Mapping[str, object]) -> object:
    """Fill in names: ``"{z}"`` becomes the value itself, ``"z={z:g}"`` a text; what has no name in ``row`` stays.

    Example:
        >>> filled({"q": "{q}", "label": "q={q:g}, {other}"}, {"q": 0.5})
        {'q': 0.5, 'label': 'q=0.5, {other}'}
    """
    if isinstance(value, dict):
        return {key: filled(inside, row) for key, inside in value.items()}
    if isinstance(value, list):
        return [filled(inside, row) for inside in value]
    if not isinstance(value, str):
        return value
    if value[:1] + value[-1:] == "{}" and value[1:-1] in row:
        return row[value[1:-1]]
    return re.sub(
        r"\{(\w+)(:[^}]*)?\}",
        lambda found: f"{{{found[2] or ''}}}".format(row[found[1]]) if found[1] in row else found[0],
        value,
    )
