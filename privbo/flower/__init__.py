"""Runs over Flower: the apps both sides load, and what starts them. Needs the extra ``flower``."""

import accountant

__getattr__, __dir__, __all__ = accountant.attach_stub(__name__, __file__)
