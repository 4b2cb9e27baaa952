"""The packaged example: 40 clients tune an SVM on unequal shards of handwritten digits.

``CONFIG`` is its configuration file; ``privbo quickstart`` runs it.
"""

from pathlib import Path

CONFIG = Path(__file__).parent / "quickstart.toml"
