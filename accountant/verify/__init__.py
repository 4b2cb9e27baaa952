"""An independent check of what a run's operator hands on: ``python -m accountant.verify.auditor BUNDLE``."""

import accountant
from accountant.ours import DISTRIBUTION

if getattr(accountant, "DISTRIBUTION", None) != DISTRIBUTION:
    raise ImportError(
        f"accountant/__init__.py is not the one of {DISTRIBUTION}: another distribution named 'accountant' was "
        "installed over it, or uninstalled; "
        "run: pip uninstall accountant; pip install --force-reinstall --no-deps privbo"
    )
