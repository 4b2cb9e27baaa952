"""Opacus training that is charged to our ledger (optional extra ``opacus``).

Opacus calls its accountant *after* the noise was drawn, so an honest ledger cannot wait
for it. The bridge therefore reserves a block of steps, durably, before the first batch; the
hook only counts down, and raises on the first step beyond the block, before the optimizer
applies it. An optimizer that was built directly, without the hook, would make Opacus's own
accountants report epsilon 0 after noisy steps. Here the whole block is charged whatever the
hook does, ``get_epsilon`` is never below it, and ``close`` raises if no step was ever counted.

    policy = LedgerPolicy(unit=Unit.RECORD, adjacency="add-or-remove-one", population="patients", n_clients=None)
    ledger = Ledger.create("patients.sqlite", policy)
    with LedgerAccountant.reserve(ledger, release_id="train", run="r1", sample_rate=0.01,
                                  noise_multiplier=1.1, steps=1000, unit=Unit.RECORD,
                                  noise_source="simulation") as accountant:
        engine = accountant.privacy_engine(secure_mode=False)
        model, optimizer, loader = engine.make_private(...)
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from opacus.accountants.accountant import IAccountant

from accountant.errors import AccountingError, BudgetExceeded, EventError, LedgerError
from accountant.events import Event, PoissonSampledGaussian, Unit, repeat
from accountant.sensitivity import contribution_factor
from accountant.tight.numerical import epsilon

if TYPE_CHECKING:
    from opacus import PrivacyEngine

    from accountant.ledger import Ledger

_SLACK = 1e-9  # relative: sample rates arrive as batch size over data size, computed elsewhere


class LedgerAccountant(IAccountant):  # type: ignore[misc]  # Opacus is untyped
    """An Opacus accountant over steps that the ledger has been charged for already.

    Proof: docs/proofs/poisson.md.
    """

    def __init__(self, ledger: Ledger, *, event: PoissonSampledGaussian, steps: int, opacus_multiplier: float) -> None:
        super().__init__()
        self._ledger = ledger
        self._noise_source = "secure"
        self._event = event
        self._multiplier = opacus_multiplier
        self.reserved = steps
        self.used = 0

    @classmethod
    def reserve(
        cls,
        ledger: Ledger,
        *,
        release_id: str,
        run: str,
        sample_rate: float,
        noise_multiplier: float,
        steps: int,
        unit: Unit,
        noise_source: str,
        nothing_left: bool = False,
        own_noise: bool = False,
    ) -> Self:
        """Charge ``steps`` Poisson-sampled steps durably; only then may training begin.

        Args:
            ledger: The population's ledger.
            release_id: Unique name of this training run's releases.
            run: The run it belongs to.
            sample_rate: Chance that one record joins a step, in (0, 1].
            noise_multiplier: As Opacus says it: noise over max_grad_norm.
            steps: Number of optimizer steps, at least 1.
            unit: What one row of the training data is; must be the ledger's unit.
            noise_source: "secure" with Opacus's secure_mode, else "simulation".
            nothing_left: Go on with a block that was charged before: you know that nothing it trained has left.
            own_noise: The noise is not drawn by Opacus, whose secure mode needs torchcsprng.

        Raises:
            LedgerError: The ledger protects another unit, the block was charged before, or storage fails.
            EventError: Secure noise without torchcsprng.
            BudgetExceeded: The budget does not hold the block.
        """
        if Unit(unit) is not ledger.policy.unit:
            raise LedgerError(
                f"training protects one {Unit(unit).value}, the ledger one {ledger.policy.unit.value}: their costs "
                "never add up; give the training a ledger of its own"
            )
        if noise_source == "secure" and not own_noise and find_spec("torchcsprng") is None:
            raise EventError(
                "noise_source='secure' needs Opacus's secure mode, and torchcsprng is not installed; install it, train "
                "with pb.train_private, which does without, or say own_noise=True where other secure noise is drawn"
            )
        factor = contribution_factor(ledger.policy.adjacency)  # Opacus' multiplier is over one record's norm
        event = PoissonSampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier / factor)
        receipt = ledger.charge(release_id, repeat(event, steps), run=run, noise_source=noise_source)
        if receipt.known and not nothing_left:
            raise LedgerError(
                f"release_id={release_id!r} was charged before, for a training that may have left; give this one an id "
                "of its own, or say nothing_left=True where you know that nothing has"
            )
        accountant = cls(ledger, event=event, steps=steps, opacus_multiplier=noise_multiplier)
        accountant._noise_source = noise_source
        return accountant

    @property
    def event(self) -> Event:
        """Everything reserved, as charged."""
        return repeat(self._event, self.reserved)

    def privacy_engine(self, *, secure_mode: bool) -> PrivacyEngine:
        """A privacy engine whose hook is this accountant.

        Raises:
            EventError: Its noise, or later its ``poisson_sampling``, is not what was charged.
        """
        from opacus import PrivacyEngine

        if secure_mode != (self._noise_source == "secure"):
            raise EventError(
                f"secure_mode={secure_mode} must be {not secure_mode}: the steps are charged with noise_source="
                f"{self._noise_source!r}; reserve what is run"
            )

        class Sampled(PrivacyEngine):  # type: ignore[misc]  # Opacus is untyped
            def make_private(self, *, poisson_sampling: bool = True, **options: object) -> object:
                if not poisson_sampling:
                    raise EventError(
                        f"poisson_sampling={poisson_sampling} must be True: the steps are charged as sampled; leave "
                        "it out"
                    )
                return super().make_private(**options)

        engine = Sampled(secure_mode=secure_mode)
        engine.accountant = self
        return engine

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; called by Opacus after the noise and before the update.

        Raises:
            BudgetExceeded: The reserved block is used up.
            EventError: The step is noisier in data or quieter in noise than what was reserved.
        """
        if self.used >= self.reserved:
            raise BudgetExceeded(
                f"step {self.used + 1} is beyond the {self.reserved} steps reserved in the ledger; reserve more first"
            )
        too_quiet = noise_multiplier < self._multiplier * (1.0 - _SLACK)
        too_often = sample_rate > self._event.sample_rate * (1.0 + _SLACK)
        if too_quiet or too_often:
            raise EventError(
                f"a step with noise multiplier {noise_multiplier:g} at rate {sample_rate:g} costs more than the "
                f"reserved {self._multiplier:g} at {self._event.sample_rate:g}; reserve what is run"
            )
        self.used += 1

    def get_epsilon(self, delta: float, *_: object, **__: object) -> float:
        """Tight epsilon of the whole reserved block: it is spent, however many steps were made."""
        return epsilon(self.event, delta, adjacency=self._ledger.policy.adjacency)

    def __len__(self) -> int:
        """Steps counted so far."""
        return self.used

    @classmethod
    def mechanism(cls) -> str:
        """Name in Opacus checkpoints."""
        return "ledger"

    def state_dict(self, destination: dict[str, object] | None = None) -> dict[str, object]:
        """State for a checkpoint: counted and reserved steps; the charge itself is in the ledger.

        Going back to a checkpoint is sound only if nothing of the later steps has left.
        """
        state = {} if destination is None else destination
        state.update(mechanism=self.mechanism(), used=self.used, reserved=self.reserved)
        return state

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on counting after a checkpoint of the same block; never counts down."""
        if state_dict.get("mechanism") != self.mechanism() or state_dict.get("reserved") != self.reserved:
            raise AccountingError(f"{dict(state_dict)!r} is no state of a block of {self.reserved} reserved steps")
        self.used = max(self.used, int(str(state_dict["used"])))

    def close(self) -> None:
        """End of training.

        Raises:
            AccountingError: No step was counted: the optimizer was built without the hook.
        """
        if self.used == 0:
            raise AccountingError(
                f"{self.reserved} steps are charged and none was counted: the optimizer was built without this "
                "accountant's hook, or never stepped; build it through privacy_engine().make_private(...)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
