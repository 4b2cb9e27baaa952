from experiments.frontier import draw, strict_epsilon


def setting(kind: str, epsilon: float, utility: float) -> dict:
    noise = {"noise_multiplier": 4.6, "releases": 20, "delta": 0.017, "standard_error": 0.01}
    return {"kind": kind, "epsilon": epsilon, "utility": utility, **noise}


def test_the_picture_is_drawn_and_names_the_stricter_epsilon() -> None:
    private = [setting("private", 2.0, 0.72), setting("private", 0.5, 0.7)]
    content = draw({"settings": [*private, setting("local", 0.0, 0.69), setting("non-private", float("inf"), 0.73)]})
    assert content.startswith(b"\x89PNG")
    assert 10_000 < len(content) < 150_000
    assert strict_epsilon(private[0]) > 4.0  # 20 releases at multiplier 4.6: mu = 0.972, 4.23 at delta = 1e-5
