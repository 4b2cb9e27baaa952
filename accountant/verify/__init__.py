"""An independent check of what a run's operator hands on: ``python -m accountant.verify.auditor BUNDLE``."""
