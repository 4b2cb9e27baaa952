"""A sentence of a paper that a paired difference can tell."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from privbo.protocol.settings import settings


@settings(table="claim")
class Claim:
    """Something the paper says of a figure that a paired difference can tell.

    Attributes:
        says: The sentence.
        less: Label of the arm that loses less, or a pattern for several (``"DP-FTS-DE, q=*"``).
        than: Label of the other.
        by: The measure that the sentence speaks of; empty for the panel's.
        within: Where the paper says that arms are alike: the largest difference, as a share of the other's loss.
        exists: Whether the sentence says that one such arm exists, and not that all of them lose less.
        chosen: Values of the setting that the paper does not name, which are ours; empty where all are the paper's.
        ours: Whether it is our control and not the paper's sentence.
        stands: Whether it is judged where its panel is withdrawn: the reason does not concern its arms.
    """

    says: str
    less: str
    than: str
    by: str = ""
    within: float | None = None
    exists: bool = False
    chosen: str = ""
    ours: bool = False
    stands: bool = False

    def of(self, labels: Iterable[str]) -> list[str]:
        """Give the labels that are held against the other.

        Example:
            >>> Claim(says="", less="q=*", than="q=1").of(["q=1", "q=2", "q=3, sum zeroed"])
            ['q=2']
        """
        found = (label for label in labels if fnmatch.fnmatchcase(label, self.less) and label != self.than)
        return [label for label in found if label == self.less or "zeroed" not in label]
