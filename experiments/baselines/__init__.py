"""Published baselines that the experiments compare with."""
