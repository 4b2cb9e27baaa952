"""Timings that asv keeps per version and draws (``make history``); beside a peer they stand in ``make bench``."""
