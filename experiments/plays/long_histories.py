"""Play clients alone through long histories, and judge which points their models keep by noiseless regret.

Regret is in units of a client's own range. Arms are the same until their histories outgrow what is kept, so that the
first half of the evaluations is left out.
"""

from __future__ import annotations

from typing import cast

from experiments.outcome import Outcome, Task, make
from experiments.plays.worth import seen
from experiments.problems.surfaces import Surfaces

POINTS = 50  # of a curve


def alone(task: Task) -> Outcome:
    """Run an algorithm of which nothing is shared."""
    clients = cast("Surfaces", make(task.problem, task.seed))
    history = task.run(clients.problem()).clients
    losses = clients.losses(history)
    reached, half = seen(losses, history), losses.shape[1] // 2
    return Outcome(
        figures={
            "end": float(reached[:, -1].mean()),
            "later": float(reached[:, half:].mean()),
            "asked": float(losses[:, half:].mean()),
        },
        curves={"regret": [round(float(x), 6) for x in reached.mean(axis=0)[:: max(1, losses.shape[1] // POINTS)]]},
    )
