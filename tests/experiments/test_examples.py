"""The examples do what their first lines say."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "examples"
EXAMPLES = {p.stem for p in FOLDER.glob("*.py")} - {"__init__", "zoom"}


def test_every_example_is_tested_and_named_on_the_site() -> None:
    here = Path(__file__).read_text()
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    for name in EXAMPLES:
        assert f"examples.{name} " in here.replace("\n", " "), name
        assert f"`{name}`" in page, name


@pytest.mark.slow
def test_hospitals_are_better_together(tmp_path: Path) -> None:
    from experiments.examples.hospitals_svm import main

    found = main(tmp_path / "run", noise="simulation")  # seeded, so the same every time
    assert found["together"] > max(found["each alone"], found["noise alone"])
    assert (tmp_path / "run" / "report.html").exists()


def test_districts_lose_less_while_they_search(capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.examples.dose_finding import main

    found = main()
    assert found["together"]["epsilon"] <= 2.0
    assert found["together"]["regret"] < min(found["each alone"]["regret"], found["noise alone"]["regret"])
    assert "at delta 1e-05" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Opacus and torch warn of each other
def test_a_good_network_is_chosen_within_the_plan(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    from experiments.examples.private_networks import PULLS, main

    found = main(tmp_path)
    assert found.chosen in {"conv-4", "mlp-64"}
    assert sum(found.pulls.values()) <= PULLS
    assert found.epsilon["maximum"] <= 4.0


def test_the_audit_leads_to_a_better_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.examples.clipping_norm import BOUNDS, main

    factors = main(tmp_path)
    assert factors[BOUNDS[0]] >= 1 > factors[BOUNDS[-1]]
    chosen = next(bound for bound in factors if bound not in BOUNDS)
    assert 0.5 < factors[chosen] < 2
    assert "CONTRADICTS" not in capsys.readouterr().out
