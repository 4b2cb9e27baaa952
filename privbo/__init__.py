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


# An ``accountant`` that did not come with this package would keep another account, or none.
_found = getattr(accountant, "__file__", None)  # a folder without __init__.py has none
_expected = abspath(f"{dirname(dirname(abspath(__file__)))}/accountant/__init__.py")
_came_with = getattr(accountant, "DISTRIBUTION", None)
if _found is None or abspath(_found) != _expected or _came_with != f"privbo {__version__}":
    raise ImportError(
        f"the package 'accountant' at {_found or 'no file'} is not the one of privbo {__version__}, {_expected}: "
        "another distribution named 'accountant' was installed over it, or uninstalled, or stands before it on the "
        "path; run: pip uninstall accountant; pip install --force-reinstall --no-deps privbo"
    )

__getattr__, __dir__, __all__ = accountant.attach_stub(__name__, __file__)
__all__.remove("optuna")  # it needs an extra, and ``import *`` loads every name here
