"""Fractional doses of a vaccine: clients are countries, the arm is the dose fraction.

The age-structured epidemic follows Wiecek et al., "Testing fractional doses of COVID-19
vaccines", PNAS 2022 (facts from the code that accompanies it; re-implemented): nine
ten-year age groups, S E I R D with vaccinated people protected or not, 5 days latent and 5
infectious, 360 days; half of the two youngest groups and a fifth of the others immune at
the start; full doses reach 0.25 % of the population per day, a fraction f of a dose 1/f
times that, up to 80 %; a dose protects a share e(f), the rest stay susceptible; no waning.

Ours, and declared: countries differ in age pyramid, contact matrix (squire's sixteen bands
collapsed to nine by population share, halves of a ten-year group taken as equal), a scenario
(R = 0.99, 1.1 or 2) drawn per country from a stated seed, infections at the start from the
cases of the last 28 days, and supply by income group. ``deaths`` adds excess fatality when
intensive care is full. e(f) goes monotonically (PCHIP) through 0, the age-averaged Pfizer
values at 1/3 and 2/3 of a dose, and 0.95 at a full one.

Where a table has no cases the start is 1000 reported per million, where it has no beds those of
the upper middle incomes.

Sources of the tables beside this file: age pyramids UN WPP 2019, contact matrices and beds
from mrc-ide/squire (MIT; World Bank), cases JHU CSSE to 2021-01-19, infection fatality and
efficacy from the code of Wiecek et al. (Pfizer trials).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from experiments.problems.environments import grid_maximum
from privbo.protocol.messages import FloatArray, IntArray

Outcome: TypeAlias = Literal["infections", "deaths"]

LOWEST_DOSE = 0.05  # arms are dose fractions in [LOWEST_DOSE, 1]
DAYS, STEP = 360, 1.0
RATE = 0.2  # per day, latent and infectious
SPEED, ENOUGH = 0.0025, 0.8
IMMUNE = np.array([0.5, 0.5, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2])
SCENARIOS = np.array([0.99, 1.1, 2.0])
EFFICACY = ((0.0, 1 / 3, 2 / 3, 1.0), (0.0, 0.851, 0.8785, 0.95))
IFR_HIGH = np.array([2e-5, 6e-5, 3e-4, 8e-4, 1.5e-3, 6e-3, 0.022, 0.051, 0.093])
IFR_LOW = np.array([2.097e-4, 3.932e-4, 1.2288e-3, 2.048e-3, 2.4e-3, 6e-3, 0.01375, 0.01992, 0.022705])
SUPPLY = {"H": 1.0, "UM": 0.6, "LM": 0.4, "L": 0.2}  # ours
REPORTED = 0.25  # share of infections that become cases (ours)
ICU_PER_DEATH, EXCESS = 2.0, 1.0  # beds asked for per expected death; deaths added per patient without one (ours)
GRID = 49  # doses of the table that simulations interpolate


@dataclass(frozen=True, kw_only=True)
class World:
    """Countries as arrays, first axis n; age groups last.

    Attributes:
        names: ISO codes.
        contacts: c_ij, ``(n, 9, 9)``.
        shares: Age pyramid, ``(n, 9)``.
        fatality: Infection fatality, ``(n, 9)``.
        supply: Vaccination speed of full doses per day, ``(n,)``.
        seeds: Infected share at the start, ``(n,)``.
        beds: Intensive-care beds per person, ``(n,)``.
        reproduction: R of the drawn scenario, ``(n,)``.
    """

    names: tuple[str, ...]
    contacts: FloatArray
    shares: FloatArray
    fatality: FloatArray
    supply: FloatArray
    seeds: FloatArray
    beds: FloatArray
    reproduction: FloatArray


def _rows(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / name).open(newline="") as file:
        return list(csv.DictReader(file))


@lru_cache
def _matrices() -> dict[str, FloatArray]:
    found: dict[str, list[list[float]]] = {}
    for row in _rows("covid_contacts.csv"):
        values = list(row.values())
        found.setdefault(values[0], []).append([float(x) for x in values[2:]])
    return {name: np.array(rows) for name, rows in found.items()}


def _nine_groups(matrix: FloatArray, shares: FloatArray) -> FloatArray:
    """Split 75+ into 75-79 and 80+ by population share and join 70-74 with 75-79."""
    older = 0.5 * shares[7]
    part = older / (older + shares[8])
    wide = np.concatenate([matrix[:, :8], matrix[:, 8:]], axis=1)
    columns = wide.copy()
    columns[:, 7] = wide[:, 7] + part * wide[:, 8]
    columns[:, 8] = (1 - part) * wide[:, 8]
    rows = columns.copy()
    rows[7] = 0.5 * (columns[7] + columns[8])
    return rows


def world(n_countries: int | None = None, *, seed: int = 0) -> World:
    """The countries (of which ``n_countries`` are drawn, with replacement only beyond all of them)."""
    generator = np.random.default_rng([seed, 23])
    table = _rows("covid_countries.csv")
    n = len(table) if n_countries is None else n_countries
    chosen = np.arange(n) if n_countries is None else generator.choice(len(table), n, replace=n > len(table))
    rows = [table[i] for i in chosen]
    shares = np.array([[float(x) for x in list(row.values())[4:13]] for row in rows])
    shares /= shares.sum(axis=1, keepdims=True)
    cases = np.array([float(row["cases_28d_per_million"] or 1000.0) for row in rows]) * 1e-6
    rich = np.array([row["income"] in ("H", "UM") for row in rows])
    return World(
        names=tuple(row["iso3"] for row in rows),
        contacts=np.stack([_nine_groups(_matrices()[row["contacts"]], s) for row, s in zip(rows, shares, strict=True)]),
        shares=shares,
        fatality=np.where(rich[:, None], IFR_HIGH, IFR_LOW),
        supply=SPEED * np.array([SUPPLY[row["income"]] for row in rows]),
        seeds=np.clip(cases / REPORTED * 5 / 28, 1e-5, 0.01),
        beds=np.array([float(row["icu_per_1000"] or 0.0757) for row in rows]) / 1000,
        reproduction=generator.choice(SCENARIOS, n),
    )


def efficacy(dose: FloatArray) -> FloatArray:
    """Share that a dose fraction protects."""
    from scipy.interpolate import PchipInterpolator

    return np.asarray(PchipInterpolator(*EFFICACY)(dose))


def simulate(countries: World, doses: FloatArray, *, step: float = STEP) -> tuple[FloatArray, FloatArray]:
    """Final shares of the population infected and dead by day 360, ``(n, K)`` each.

    Args:
        countries: n countries.
        doses: K dose fractions in (0, 1]; 0 stands for no vaccine.
        step: Days of a Runge-Kutta step.
    """
    shares = countries.shares[:, None, :]
    protects, speed = efficacy(doses)[None, :, None], np.zeros(len(doses))
    speed[doses > 0] = 1 / doses[doses > 0]
    daily = countries.supply[:, None] * speed
    force = np.ascontiguousarray(_force(countries).transpose(0, 2, 1))
    fatality, beds = countries.fatality[:, None, :], countries.beds[:, None]

    def slope(time: float, state: FloatArray) -> FloatArray:
        open_, missed, exposed, infectious = state[0], state[1], state[2], state[3]
        pressure = infectious @ force
        vaccinated = np.minimum(ENOUGH, daily * time)
        hazard = np.where(daily * time < ENOUGH, daily / (1 - vaccinated), 0.0)[..., None]
        caught, missed_caught, shots = pressure * open_, pressure * missed, hazard * open_
        new = caught + missed_caught
        resolved = RATE * infectious
        expected = resolved * fatality
        wanted = ICU_PER_DEATH / RATE * np.sum(shares * expected, axis=-1)
        full = np.where(wanted > beds, 1 - beds / np.maximum(wanted, 1e-300), 0.0)[..., None]
        deaths = expected * (1 + EXCESS * full)
        return np.stack(
            [
                -caught - shots,
                (1 - protects) * shots - missed_caught,
                new - RATE * exposed,
                RATE * exposed - resolved,
                new,
                deaths,
            ]
        )

    state = _start(countries, len(doses))
    for index in range(round(DAYS / step)):
        time = index * step
        a = slope(time, state)
        b = slope(time + step / 2, state + step / 2 * a)
        c = slope(time + step / 2, state + step / 2 * b)
        d = slope(time + step, state + step * c)
        state = state + step / 6 * (a + 2 * b + 2 * c + d)
    return np.sum(shares * state[4], axis=-1), np.sum(shares * state[5], axis=-1)


def _force(countries: World) -> FloatArray:
    """c_ij R / (5 lambda), lambda the leading eigenvalue of c_ij (1 - immune_j)."""
    leading = np.abs(np.linalg.eigvals(countries.contacts * (1 - IMMUNE))).max(axis=1)
    return np.asarray(countries.contacts * (countries.reproduction * RATE / leading)[:, None, None])


def _start(countries: World, n_doses: int) -> FloatArray:
    """S, vaccinated in vain, E, I, infections so far, deaths so far: ``(6, n, K, 9)``, shares of each age group."""
    n = len(countries.names)
    state = np.zeros((6, n, n_doses, 9))
    sick = countries.seeds[:, None, None]
    state[0] = (1 - IMMUNE) * (1 - 2 * sick)
    state[2] = state[3] = (1 - IMMUNE) * sick
    return state


class Countries:
    """Countries as clients of a dose: values from a table over doses, interpolated linearly.

    ``"infections"``: one minus the share infected within 360 days. ``"deaths"`` (ours): the
    share of the deaths without any vaccine that is averted.
    """

    def __init__(self, countries: World, outcome: Outcome = "infections") -> None:
        self.name, self.n_dims, self.n_clients = f"covid-{outcome}", 1, len(countries.names)
        doses = LOWEST_DOSE + (1 - LOWEST_DOSE) * np.linspace(0, 1, GRID)
        infected, dead = simulate(countries, np.append(doses, 0.0))
        averted = 1 - dead[:, :-1] / np.maximum(dead[:, -1:], 1e-300)
        self.table = np.clip(1 - infected[:, :-1] if outcome == "infections" else averted, 0.0, 1.0)

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Reward of a dose; unit 0 is the lowest dose."""
        place = np.clip(units[:, 0], 0, 1) * (GRID - 1)
        low = np.minimum(place.astype(np.int64), GRID - 2)
        part = place - low
        return np.asarray((1 - part) * self.table[clients, low] + part * self.table[clients, low + 1])

    def average(self, units: FloatArray) -> FloatArray:
        """The average country."""
        return np.asarray(np.interp(units[:, 0] * (GRID - 1), np.arange(GRID), self.table.mean(axis=0)))

    @property
    def local_bests(self) -> FloatArray:
        """Best value of every country."""
        return np.asarray(self.table.max(axis=1))

    @cached_property
    def global_optimum(self) -> FloatArray:
        """Best dose on average."""
        return grid_maximum(self.average, 1, GRID)

    @property
    def global_optima(self) -> FloatArray:
        """Best dose on average, alone."""
        return self.global_optimum[None]


@lru_cache(maxsize=4)
def model(n_clients: int, seed: int) -> Countries:
    """Countries drawn for an experiment; scenarios from the seed."""
    return Countries(world(n_clients, seed=seed))
