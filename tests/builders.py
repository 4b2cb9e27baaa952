"""What many tests begin with: a small problem and a run of it; a request of two clients, a ledger, a door."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from markupsafe import Markup

import privbo as pb
from accountant.events import Adjacency, Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from privbo.door import mechanism as described
from privbo.door.door import Door
from privbo.door.mechanism import Mechanism
from privbo.door.noise import SimulatedNoise
from privbo.door.sampling import Keeper, Sample
from privbo.protocol.messages import Release, Request
from privbo.reports.figure import Figure, inline_svg
from privbo.runs.offer import always
from privbo.testing import toy_problem

SIMULATED = pb.Privacy(noise_multiplier=1.0, noise="simulation")
WEIGHTS = np.array([[0.5, 0.25], [0.0, 0.25]])


def problem(n_clients: int = 4, **settings: Any) -> pb.Problem:
    """One coordinate and an objective that is 0 everywhere, unless something else is asked for."""
    objective = {} if "batch_objective" in settings else {"objective": lambda client, params: 0.0}
    return pb.Problem(**{"space": {"x": pb.Real(0, 1)}, "n_clients": n_clients} | objective | settings)


def spec(problem: pb.Problem | None = None, algorithm: Any = None, **settings: Any) -> pb.Spec:
    """Three rounds with seeded noise; seven clients of the packaged small problem unless one is given."""
    plain = {"name": "small", "privacy": SIMULATED, "rounds": 3, "seed": 1}
    algorithm = always(algorithm or pb.DPFTSDE(n_features=8, n_regions=2))
    return pb.Spec(problem=problem or toy_problem(7), algorithm=algorithm, **plain | settings)


def play(problem: pb.Problem | None = None, algorithm: Any = None, **settings: Any) -> pb.Record:
    """Run what ``spec`` describes; ``settings`` are those of ``pb.run``."""
    plain = {"privacy": SIMULATED, "rounds": 3, "seed": 1}
    algorithm = always(algorithm or pb.DPFTSDE(n_features=8, n_regions=2))
    return pb.run(problem or toy_problem(7), algorithm, **plain | settings)


class StoppedError(Exception):
    """Ends a run, as its operator or a reader of releases does."""


def stopping(at: int) -> Callable[[pb.Round], None]:
    """A callback that ends a run after a round."""

    def stop(event: pb.Round) -> None:
        if event.index == at:
            raise StoppedError

    return stop


def stopped(at: int, play: Callable[..., object], *given: object, **settings: Any) -> None:
    """Play a run that is ended after a round."""
    with pytest.raises(StoppedError):
        play(*given, on_round=stopping(at), **settings)


def same_releases(found: Any, expected: Any) -> None:
    """Require the same releases of two records, or in two lists, to the last bit."""
    made, wanted = (getattr(each, "releases", each) for each in (found, expected))
    for ours, theirs in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)


def release(values: Any, noise: float = 0.1, round_: int = 0) -> Release:
    """As a door makes it of noise of this deviation."""
    return Release(round=round_, values=np.asarray(values), noise_stddev=noise, sequence=1, head="")


def request(**changes) -> Request:
    return Request(**({"dim": 3, "clipping_norm": 2.0, "weights": WEIGHTS} | changes))


def mechanism_for(request: Request, **settings: Any) -> Mechanism:
    """The mechanism that answers a request, with the settings of its sample among its own."""
    sampling = {name: settings.pop(name) for name in settings.keys() & vars(Sample(n_clients=1)).keys()}
    return described.mechanism_for(request, sample=lambda n: Sample(n_clients=n, **sampling), **settings)


def ledger(
    n_clients: int = 2, path: Path | None = None, *, budget: Budget | None = None, unit: Unit = Unit.CLIENT
) -> Ledger:
    """A ledger of a unit under the adjacency that belongs to it."""
    adjacency = Adjacency.REPLACE_ONE if unit is Unit.REWARD else Adjacency.ZERO_OUT
    policy = LedgerPolicy(unit=unit, adjacency=adjacency, population="p", n_clients=n_clients, budget=budget)
    return Ledger.create(path, policy)


def door(book: Ledger, *, noise=None, mechanism=None, run="run", clipper=None, keeper=None, **settings) -> Door:
    """A door of the ledger's clients, with seeded noise of multiplier 1, unless something else is asked for."""
    settings = {"noise_multiplier": 1.0} | settings
    return Door(
        book,
        run=run,
        noise=noise or SimulatedNoise(3),
        mechanism=mechanism or (lambda wanted: mechanism_for(wanted, **settings)),
        clipper=clipper,
        keeper=keeper or Keeper(),
    )


@contextlib.contextmanager
def figures_as_data() -> Iterator[None]:
    """Pages hold what a figure is made of instead of its picture, which takes longer than a small run."""

    def written(figure: object, label: str, name: str) -> Markup:
        if not isinstance(figure, Figure):
            return inline_svg(figure, label, name)
        data = json.dumps(dataclasses.asdict(figure), default=lambda value: np.asarray(value).tolist())
        return Markup("<svg>{}</svg>").format(data)

    plain = mock.patch.object(Figure, "plot", lambda figure: figure)
    with plain, mock.patch("privbo.reports.figure.inline_svg", written):
        yield


def put_back(source: Path, target: Path, names: Iterable[str]) -> None:
    """Put files and folders of one directory in place of another's; what the one lacks is taken away."""
    for name in names:
        shutil.rmtree(target / name, ignore_errors=True)
        (target / name).unlink(missing_ok=True)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        elif (source / name).exists():
            shutil.copy(source / name, target / name)


class Changed:
    """An object, but for some of its members."""

    def __init__(self, inner: object, **members: Any) -> None:
        self.__dict__ |= {"inner": inner} | members

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
