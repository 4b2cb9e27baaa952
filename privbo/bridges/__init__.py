"""Ways in and out: writers for TensorBoard and MLflow, and a bridge to Optuna; all optional."""
