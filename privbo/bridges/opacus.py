"""Our accountant inside Opacus: ``PrivacyEngine(accountant="privbo")`` once this module is imported.

It prices what Opacus did, as Opacus' own accountants do, and stops nothing. A ledger that reserves the steps before
the first batch is ``privbo.door.opacus``.

Example:
    >>> import privbo.bridges.opacus
    >>> from opacus.accountants.utils import get_noise_multiplier
    >>> goal = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.25, "steps": 40}
    >>> round(get_noise_multiplier(**goal, accountant="privbo"), 1)
    3.4
"""

from __future__ import annotations

from opacus.accountants import IAccountant, register_accountant

import accountant
from accountant.events import Composed, NonPrivate, PoissonSampledGaussian, compose


class PrivboAccountant(IAccountant):  # type: ignore[misc]  # Opacus is untyped
    """Opacus' history of steps, priced by the tight accountant under add-or-remove-one.

    .. versionadded:: 0.3.0
    """

    def __init__(self) -> None:
        super().__init__()

    @classmethod
    def mechanism(cls) -> str:
        """Name under which Opacus finds it."""
        return "privbo"

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one optimizer step."""
        here = (noise_multiplier, sample_rate)
        count = self.history.pop()[2] if self.history and tuple(self.history[-1][:2]) == here else 0
        self.history.append((*here, count + 1))

    def get_epsilon(self, delta: float) -> float:
        """Certified upper epsilon of all steps so far."""
        return accountant.epsilon(self.event, delta)

    @property
    def event(self) -> Composed:
        """All steps as one event; also what ``accountant.tradeoff`` reads."""
        return compose([(_step(z, q), count) for z, q, count in self.history])

    def __len__(self) -> int:
        return len(self.history)


def _step(noise_multiplier: float, sample_rate: float) -> PoissonSampledGaussian | NonPrivate:
    if noise_multiplier == 0.0:
        return NonPrivate()
    return PoissonSampledGaussian(sample_rate=min(1.0, sample_rate), noise_multiplier=noise_multiplier)


register_accountant(PrivboAccountant.mechanism(), PrivboAccountant, force=True)
