"""The distribution that this package came with, by which another distribution's ``accountant`` is told from it.

Another distribution of the name ``accountant`` writes over ``accountant/__init__.py`` without a word, and takes the
file away when it is uninstalled. Whichever file then stands there does not know this module.
"""

DISTRIBUTION = "privbo 0.3.0"
"""Name and version; the version is that of ``privbo.__version__``."""
