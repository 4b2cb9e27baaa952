"""Audits of clipping and of the mechanism as a black box."""
