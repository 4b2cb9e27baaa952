"""Differentially private federated optimisation of expensive black-box objectives.

    import privbo as pb

    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=40)
    record = pb.run(problem, pb.SharedPrior(), privacy=pb.Privacy(epsilon=2), rounds=20)
    record.epsilon(), record.best(client=3), pb.write_report(record)

Names stand in ``__init__.pyi`` and are loaded on first use, so that importing the package stays fast.
"""

from __future__ import annotations

from os.path import abspath, dirname

import accountant

__version__ = "0.3.0"


def _require_own_accountant() -> None:
    """Refuse an ``accountant`` that did not come with this package: it would keep another account, or none.

    Raises:
        ImportError: If it is of another distribution or version, or stands elsewhere.
    """
    found = getattr(accountant, "__file__", None)  # a folder without __init__.py has none
    beside = abspath(f"{dirname(dirname(abspath(__file__)))}/accountant/__init__.py")
    came_with = getattr(accountant, "DISTRIBUTION", None)
    if found is None or abspath(found) != beside or came_with != f"privbo {__version__}":
        raise ImportError(
            f"the package 'accountant' at {found or 'no file'} is not the one of privbo {__version__}, {beside}: "
            "another distribution named 'accountant' was installed over it, or uninstalled, or stands before it on the "
            "path; run: pip uninstall accountant; pip install --force-reinstall --no-deps privbo"
        )


_require_own_accountant()

__getattr__, __dir__, __all__ = accountant.attach_stub(__name__, __file__)
__all__.remove("optuna")  # it needs an extra, and ``import *`` loads every name here
