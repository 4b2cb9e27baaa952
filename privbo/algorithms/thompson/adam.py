"""Numbers of the optimiser of all fits, compiled or torch's."""

from __future__ import annotations

RATE = 0.15
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Kingma & Ba 2015
# A logarithm this close to its prior's median is at the median: from a gradient that is a rounding error only, Adam
# makes steps of a hundredth, and a parameter of which the values say nothing would wander.
ROUNDING = 1e-13
