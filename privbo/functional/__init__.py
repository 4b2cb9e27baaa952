"""Choosing the best function (or model) with optimisers of known rate: F-LCB and its rivals."""
