"""Choosing among functions whose optimisers have known rates: F-LCB."""
