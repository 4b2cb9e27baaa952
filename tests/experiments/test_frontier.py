import pytest

from experiments.frontier import best_alone, draw, gain


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


def test_the_picture_is_drawn() -> None:
    private = [setting("private", [0.72, 0.8], 2.0), setting("private", [0.7, 0.75], 1.0)]
    theirs = setting("private", [0.6, 0.7], 2.0, "DP-FTS-DE, epsilon 2")
    controls = [setting("local", [0.69, 0.7]), setting("zeroed", [0.69, 0.7], 2.0), setting("non-private", [0.7, 0.8])]
    content = draw({"settings": [*private, theirs, *controls]})
    assert content.startswith(b"\x89PNG")
    assert 10_000 < len(content) < 150_000
