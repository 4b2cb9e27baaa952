"""Calls in processes of their own."""

import random

import numpy as np
import pytest
import torch

from privbo.protocol.processes import NoAnswerError, within

DRAWS = {
    "numpy": lambda: float(np.random.normal()),  # noqa: NPY002 (an objective may use it)
    "python": random.random,
    "torch": lambda: float(torch.rand(1)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_calls_that_draw_from_a_global_generator_do_not_all_draw_the_same(draw):
    draw()  # so that the generator stands before the fork
    assert len({draw(), *(within(60.0, draw) for _ in range(3))}) == 4


def test_a_call_that_raises_says_so():
    with pytest.raises(NoAnswerError, match="ZeroDivisionError: "):
        within(60.0, lambda: 1 / 0)
