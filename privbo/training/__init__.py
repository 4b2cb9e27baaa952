"""Record-level privacy for models trained on central data: plan, doors, journal, private searches."""
