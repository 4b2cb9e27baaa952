import pytest

from experiments.frontier import best_alone, gain


def setting(kind: str, utilities: list[float], epsilon: float = 0.0, name: str | None = None) -> dict:
    return {
        "setting": name or kind,
        "kind": kind,
        "strict_epsilon": epsilon,
        "strict_delta": 1e-5,
        "utility": sum(utilities) / len(utilities),
        "by_seed": {str(seed): value for seed, value in enumerate(utilities)},
        "curve": [0.5, *utilities],
    }


def test_the_gain_is_over_the_best_local_engine_and_paired_over_seeds() -> None:
    weak, strong = setting("local", [0.6, 0.7]), setting("local", [0.65, 0.75])
    assert best_alone([weak, strong]) is strong
    middle, half = gain(setting("private", [0.68, 0.78], 2.0), strong)
    assert (middle, half) == (pytest.approx(0.03), pytest.approx(0.0, abs=1e-12))
    assert gain(setting("private", [0.68, 0.76], 2.0), strong)[1] == pytest.approx(0.01)
