"""Small pieces of work whose time is kept from version to version.

asv calls ``setup``, then every function whose name begins with ``time_``, several times, and stores the medians; those
that begin with ``timeraw_`` give code for a fresh interpreter. Names and work stay as they are once results are stored:
a changed piece of work gets another name. asv takes names of this module such as ``repeat`` and ``number`` for its own
settings, so nothing of that name is imported.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import accountant
import privbo as pb
from accountant import Adjacency, PoissonSampledGaussian, epsilon_interval
from accountant.events import Gaussian, Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from privbo.protocol.messages import FloatArray, IntArray


class Accounting:
    """Prices, without any curve in a cache: every call has another multiplier."""

    def setup(self) -> None:
        """Begin with the first multiplier."""
        self.multiplier = 1.0

    def time_interval_of_forty_sampled_releases(self) -> None:
        """Price forty Poisson-sampled releases."""
        self.multiplier += 1e-4
        event = accountant.repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=self.multiplier), 40)
        epsilon_interval(event, 1e-5, adjacency=Adjacency.ZERO_OUT)

    def time_calibration_of_forty_sampled_releases(self) -> None:
        """Find the noise for an epsilon."""
        self.multiplier += 1e-4
        accountant.noise_multiplier(epsilon=self.multiplier, sample_rate=0.25, rounds=40, delta=1e-5)


class Charges:
    """Durable charges on this machine's disk."""

    def setup(self) -> None:
        """Open a ledger in a new folder."""
        self.folder = tempfile.TemporaryDirectory()
        budget = Budget(epsilon=100.0, delta=1e-5, rule="renyi")
        policy = LedgerPolicy(
            unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="timed", n_clients=200, budget=budget
        )
        self.ledger = Ledger.create(Path(self.folder.name) / "ledger.sqlite", policy)
        self.count = 0

    def teardown(self) -> None:
        """Close it and forget the folder."""
        self.ledger.close()
        self.folder.cleanup()

    def time_charge(self) -> None:
        """Charge one release, until it is on the disk."""
        self.count += 1
        event = Gaussian(noise_multiplier=10.0)
        self.ledger.charge(f"r/{self.count}", event, run="r", noise_source="secure")


def scores(clients: IntArray, units: FloatArray) -> FloatArray:
    """Score many clients at once."""
    best = 0.5 + clients[:, None] / 400
    found: FloatArray = np.exp(-6 * ((units - best) ** 2).sum(axis=1))
    return found


class Runs:
    """Whole small runs in one process, compiled code warm."""

    def setup(self) -> None:
        """Make the problem, and run once."""
        space = {"x": pb.Real(0, 1), "y": pb.Real(0, 1)}
        self.problem = pb.Problem(space=space, batch_objective=scores, n_clients=40)
        self.privacy = pb.Privacy(epsilon=4.0, noise="simulation")
        self.time_shared_prior()

    def time_plan(self) -> None:
        """Plan a run."""
        pb.plan(self.problem, pb.SharedPrior(), privacy=self.privacy, rounds=20)

    def time_shared_prior(self) -> None:
        """Run eight rounds of the default."""
        pb.run(self.problem, pb.SharedPrior(), privacy=self.privacy, rounds=8, seed=1)

    def time_fed_pne(self) -> None:
        """Run an elimination with 2,000 pulls of every client."""
        pb.run(self.problem, pb.FedPNE(horizon=2000), privacy=self.privacy, rounds=8, seed=1)


def timeraw_import_privbo() -> str:
    """Import the package in a fresh interpreter."""
    return "import privbo"


def timeraw_import_accountant() -> str:
    """Import the accountant alone."""
    return "import accountant"
