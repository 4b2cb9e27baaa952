"""A configuration tried out before a run: its code, its price, and one evaluation per client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privbo.cli.results import Rehearsal
from privbo.cli.run import price_run
from privbo.protocol.interrupts import watched_interrupts
from privbo.protocol.threads import limited_threads
from privbo.runs.aside import printed_to
from privbo.runs.config import read_spec


def rehearse(config: Path, overrides: Sequence[str], *, show_private: bool) -> Rehearsal:
    """Price a configuration and evaluate every client's objective once, in the middle of the space.

    Nothing is charged and nothing is written. Who failed, and why, is private.

    Args:
        config: The file.
        overrides: Set on top of it.
        show_private: Say who failed, and leave what objectives print on the terminal.

    Raises:
        ConfigurationError: If a setting is impossible, or the code has another signature.
    """
    spec, _ = read_spec(config, overrides)
    priced, problem = price_run(spec), spec.problem
    everyone = np.arange(problem.n_clients)
    middle = problem.search_space.snap(np.full((1, problem.search_space.n_dims), 0.5))
    private = printed_to(None if show_private else Path(os.devnull))
    with limited_threads(spec.threads), private, watched_interrupts() as stopped:
        limit = None if spec.times is None else spec.times.of_one(problem.n_clients)
        evaluate = problem.evaluator(stopped=stopped, client_seconds=limit)
        evaluate(everyone, np.repeat(middle, len(everyone), axis=0))
    return Rehearsal(
        plan=priced,
        params=problem.search_space.decode(middle[0]),
        failures=dict(evaluate.errors) if show_private else None,
    )
