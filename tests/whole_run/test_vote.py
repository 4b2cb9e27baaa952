"""A vote that tells more than its release is betrayed by the audit of whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from privbo.protocol.messages import Broadcast, FloatArray, Release
from privbo.runs.best import CommonCohort, CommonServer
from tests.conformance.cases import VOTES
from tests.whole_run.test_whole_run import audit, configuration
from tests.whole_run.worlds import SHORT

CASE = VOTES[0]


@contextmanager
def told_before_the_noise() -> Iterator[None]:
    """A planted fault: how clear the vote was is computed from the ballots themselves."""
    sent: list[FloatArray] = []
    respond = CommonCohort.respond

    def kept(self: CommonCohort, broadcast: Broadcast) -> FloatArray:
        sent[:] = [respond(self, broadcast)] if "final_candidates" in broadcast.arrays else sent
        return respond(self, broadcast)

    def plain(self: CommonServer) -> Release | None:
        made = vars(self)["_released"]
        return None if made is None else replace(made, values=np.nansum(sent[0], axis=0, keepdims=True))

    told = property(plain, lambda self, made: vars(self).__setitem__("_released", made))
    answering = mock.patch.object(CommonCohort, "respond", kept)
    with answering, mock.patch.object(CommonServer, "released", told, create=True):
        yield


def test_a_vote_whose_ballots_are_told_is_betrayed(tmp_path: Path) -> None:
    with told_before_the_noise():
        differing, _ = audit({"run.toml": configuration(CASE)}, ("plain", "absent"), tmp_path, SHORT)
    assert any("common.json" in name for name in differing), differing
