"""The one door: clipping, sums, noise and the charge for every release."""
