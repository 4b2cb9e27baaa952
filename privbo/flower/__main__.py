"""``python -m privbo.flower PROGRAM ...``: one of Flower's programs, whose processes are forks of it."""

from __future__ import annotations

import sys

from privbo.flower.launch import become

if __name__ == "__main__":
    become(sys.argv[1], sys.argv[2:])
