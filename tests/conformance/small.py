"""The problem that small cases play, importable in a moment: processes of a federation start by the dozen."""

from privbo.testing import toy_problem

N_CLIENTS = 7
ROUNDS = 4


def problem(n_clients: int = N_CLIENTS):
    return toy_problem(n_clients)
