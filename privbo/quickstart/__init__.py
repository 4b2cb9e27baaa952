"""The packaged example: 40 clients tune a classifier of tumours, each on rows of its own.

``CONFIG`` is its configuration file; ``privbo quickstart`` runs it.
"""

from pathlib import Path

CONFIG = Path(__file__).parent / "quickstart.toml"
