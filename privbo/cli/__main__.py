"""``python -m privbo.cli``: the same as the command ``privbo``."""

from privbo.cli.main import main

main()
