"""Budget that is left on a ledger: of a run, of a population, or of all runs at a site or guardian."""

from __future__ import annotations

from pathlib import Path

from accountant.events import Event, Gaussian, PoissonSampledGaussian
from accountant.ledger import Ledger
from accountant.ledger.address import is_postgres, place_of
from accountant.ledger.pricing import Left
from accountant.ledger.store import Place
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import require_contained


def left_on(path: str, *, delta: float | None, noise_multiplier: float | None, sample_rate: float) -> Left:
    """Say what is left on a ledger; opens nothing but what ``path`` names, or what lies inside that folder.

    Args:
        path: A ledger's file or address, the directory of a run or of a party, or a party's settings.
        delta: Where epsilon is quoted; None for the ledger's own.
        noise_multiplier: Of a release whose number is asked for; None for none.
        sample_rate: Of that release.

    Raises:
        ConfigurationError: If there is no ledger.
    """
    event = _event(noise_multiplier, sample_rate)
    if path.endswith(".toml"):
        return _of_party(Path(path), delta, event)
    with Ledger.open(_place(path)) as ledger:
        return ledger.left(delta, event=event)


def _event(noise_multiplier: float | None, sample_rate: float) -> Event | None:
    if noise_multiplier is None:
        return None
    if sample_rate == 1.0:
        return Gaussian(noise_multiplier=noise_multiplier)
    return PoissonSampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)


def _of_party(file: Path, delta: float | None, event: Event | None) -> Left:
    from privbo.flower.party_policy import POPULATION, ledger_path, required_policy
    from privbo.flower.settings import read_party

    party = read_party(file)
    if ledger_path(party).exists():
        with Ledger.open(ledger_path(party)) as ledger:
            return ledger.left(delta, event=event)
    with Ledger.create(None, required_policy(party).ledger_policy(POPULATION)) as nothing_yet:
        return nothing_yet.left(delta, event=event)


def _place(path: str) -> Place:
    if is_postgres(path) or not Path(path).is_dir():
        return place_of(path)
    inside = (Path(path) / "ledger.sqlite", Path(path) / "_policy" / "ledger.sqlite")
    if found := [file for file in inside if file.is_file()]:
        require_contained(Path(path))
        return found[0]
    raise ConfigurationError(
        f"{path} holds no ledger; name the file or address of the one that its runs share, or a site.toml"
    )
