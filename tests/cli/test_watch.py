"""Watching runs: what is shown while they go on, who may look, and that nothing private shows unasked."""

import http.client
import re
import shutil
import threading
from contextlib import contextmanager
from unittest import mock
from urllib.parse import urlsplit

import numpy as np
import pytest

import privbo as pb
from privbo.cli.watch import Render, live_server, write_until
from privbo.protocol.files import save_arrays, write_json
from privbo.protocol.settings import dump_settings
from privbo.reports.watch import Watch, look
from privbo.runs.best import EVALUATIONS, FACTS, SiteFacts
from tests.cli.test_cli import ran
from tests.deployment.federations import SITES, make
from tests.reports.leaks import PRIVATE_WORDS, scramble
from tests.reports.runs import EVIL, small_run


def site(folder, n_clients: int = 2):
    """A site's folder of one run, as a federation leaves it."""
    folder.mkdir(parents=True)
    space = {"x": pb.Real(0.0, 1.0), "kind": pb.Categorical(("a", EVIL))}
    write_json(folder / FACTS, dump_settings(SiteFacts(clients=tuple(range(5, 5 + n_clients)), space=space)))
    generator = np.random.default_rng(0)
    units, values = generator.uniform(size=(n_clients, 12, 2)), generator.normal(size=(n_clients, 12))
    values[0, 0] = np.nan  # a failed evaluation
    rounds = np.arange(12)
    save_arrays(folder / EVALUATIONS, {"units": units, "values": values, "rounds": rounds, "recommended": units[:, 0]})
    return folder


def test_a_run_is_seen_going_on(tmp_path) -> None:
    seen = []

    def watching(_: pb.Round) -> None:
        seen.append(look(tmp_path / "run", seen[-1] if seen else None))

    made = small_run(tmp_path / "run", rounds=4, on_round=watching)
    assert [w.problem for w in seen] == [None] * len(seen)
    assert [w.run.charged.releases for w in seen if w.run][:4] == [1, 2, 3, 4]
    assert [w.run.done for w in seen if w.run][:4] == [1, 2, 3, 4]
    spent = [w.run.spent for w in seen if w.run]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[3] == pytest.approx(made.epsilon(), rel=1e-9)
    assert seen[0].run.charged.smallest_epsilon == pytest.approx(made.epsilon(), rel=1e-9)


def test_what_cannot_be_read_just_now_leaves_what_was_read_before(tmp_path) -> None:
    small_run(tmp_path / "run")
    before = look(tmp_path / "run")
    (tmp_path / "run" / "history.jsonl").write_text("{\n")
    after = look(tmp_path / "run", before)
    assert (after.run, before.problem) == (before.run, None)
    assert after.problem
    assert "Traceback" not in Watch(directories=[tmp_path / "run", tmp_path / "missing"]).page()


def test_public_pages_hold_nothing_of_the_private_side(tmp_path) -> None:
    home = tmp_path / "one" / "run"
    small_run(home)
    other = shutil.copytree(home, tmp_path / "other" / "run")
    scramble(other / "private")
    pages = [Watch(directories=[path]).page() for path in (home, other)]
    assert pages[0] == pages[1]
    assert not [word for word in PRIVATE_WORDS if word in pages[0] and word not in ("curve", "signal", "bias")]
    private = Watch(directories=[home], private=True).page()
    assert "Clients present (private)" in private
    assert "drawn" in private
    assert "Clients present (private)" not in pages[0]


def test_a_site_shows_its_own_trials_where_private_is_asked_for(tmp_path) -> None:
    folder = site(tmp_path / "site" / "run")
    refused = Watch(directories=[folder]).page()
    assert "add --private" in refused
    assert "best value so far" not in refused
    page = Watch(directories=[folder], private=True).page()
    assert "best value so far" in page
    assert "23 trials over x, kind, value" in page  # one of 24 has failed
    assert page.count("<tr>") >= 24
    assert EVIL not in page
    many = Watch(directories=[site(tmp_path / "large" / "run", n_clients=30)], private=True).page()
    assert "median client" in many


def test_trials_are_sorted_and_filtered_where_the_page_is_served(tmp_path) -> None:
    watched = Watch(directories=[site(tmp_path / "site" / "run")], private=True)

    def values(query: dict[str, str] | None) -> list[str]:
        rows = re.findall(r"<tr>(<td.*?)</tr>", watched.page(query))
        return [re.findall(r">([^<]*)</td>", row)[-1] for row in rows]

    newest, by_value, alone = values({}), values({"sort": "value"}), values({"client": "5", "sort": "value"})
    assert newest != by_value == [*sorted((v for v in newest if v != "-"), key=float, reverse=True), "-"]
    assert len(by_value) == 24  # the failed one stands last
    assert len(alone) == 12
    assert set(alone) < set(by_value)
    assert len(values({"sort": EVIL, "client": "9"})) == 0
    assert EVIL not in watched.page({"sort": EVIL, "client": EVIL})
    assert "?sort=value&amp;client=5" in watched.page({"sort": "x", "client": "5"})
    assert "?sort" not in watched.page()


def test_the_time_left_follows_from_the_rounds_seen(tmp_path, monkeypatch) -> None:
    home, pages, now = tmp_path / "run", [], [100.0]
    monkeypatch.setattr("privbo.reports.watch.time.monotonic", lambda: now[0])
    watched = Watch(directories=[home])

    def watching(_: pb.Round) -> None:
        now[0] += 60.0
        pages.append(watched.page())

    small_run(home, rounds=8, on_round=watching)
    found = [re.search(r"of 8 rounds(?:, about (.*?) left)?", page)[1] for page in pages]
    assert found == [None, "6 minutes", "5 minutes", "4 minutes", "3 minutes", "2 minutes", "60 seconds", None, None]


def test_a_federation_is_watched_at_its_server_and_at_every_site(tmp_path) -> None:
    federation = make(tmp_path)
    federation.play()
    public = look(federation.run.path)
    assert (public.problem, public.present, public.trials) == (None, None, None)
    assert public.run.charged.releases == public.run.charged.planned_releases > 0
    seen = look(federation.run.path, private=True)
    assert set(seen.present) == {f"site {name}" for name in SITES}
    assert len(set(seen.present.values())) == 1  # all of them were there to the end
    assert seen.trials is None  # what they evaluate never comes here
    told = set()
    for name in SITES:
        own = look(next((tmp_path / name / "kept").glob(f"*/{FACTS}")).parent, private=True)
        assert own.problem is None
        assert np.isfinite(own.trials.history.values).any()
        told |= set(own.trials.clients)
    assert told == set(range(pb.load(federation.run.path).plan.n_clients))


def test_runs_of_one_ledger_stand_side_by_side_with_their_total(tmp_path) -> None:
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=50.0, delta=1e-5)
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        small_run(home, ledger=people, privacy=pb.Privacy(noise_multiplier=3.0), name=home.name)
    page = Watch(directories=homes).page()
    assert page.count("<progress") == 2
    assert "Everything that this ledger records for population <b>ward</b>, 6 releases of 2 runs" in page


@contextmanager
def served(render: Render):
    """The address that opens a page which is served meanwhile."""
    server, address = live_server(render)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_address_opens_once_and_only_here() -> None:
    with served(lambda query: f"the page{query or ''}") as address:
        port, token = urlsplit(address).port, address.partition("?token=")[2]
        assert asked(port, "/")[0] == 403
        assert asked(port, "/?token=wrong")[0] == 403
        status, _, headers = asked(port, f"/?token={token}")
        assert (status, headers["Location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in headers["Set-Cookie"].split(";")}
        assert asked(port, f"/?token={token}")[0] == 403
        cookie = headers["Set-Cookie"].partition(";")[0]
        status, body, headers = asked(port, "/", Cookie=cookie)
        assert (status, body, headers["Cache-Control"]) == (200, "the page", "no-store")
        assert asked(port, "/?sort=x&client=3", Cookie=cookie)[1] == "the page{'sort': 'x', 'client': '3'}"
        assert asked(port, "/", Cookie="privbo=guess")[0] == 403
        assert asked(port, "/../etc/passwd", Cookie=cookie)[0] == 404
        assert asked(port, "/", Cookie=cookie, Host="evil.example")[0] == 404
        assert asked(port, "/", method="POST", Cookie=cookie)[0] == 501
        with pytest.raises(pb.RunError, match="can't be had"):
            live_server(lambda query: "", port)


def test_a_static_file_is_written_again_and_a_private_one_is_its_owners(tmp_path) -> None:
    page = mock.Mock(side_effect=["page 1", "page 2", "page 3", KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        write_until(page, tmp_path / "w" / "live.html", every=0.01, private=True)
    assert (tmp_path / "w" / "live.html").read_text() == "page 3"
    assert (tmp_path / "w" / "live.html").stat().st_mode & 0o077 == 0
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere.html")
    with pytest.raises(pb.RunError, match="symbolic link"):
        write_until(page, tmp_path / "link.html", every=None, private=False)


def test_the_command_writes_a_page_that_asks_for_itself_again(tmp_path) -> None:
    small_run(tmp_path / "run")
    out = tmp_path / "live.html"
    ran("watch", tmp_path / "run", "--static", out, "--once", "--every", "3")
    page = out.read_text()
    assert '<meta http-equiv="refresh" content="3">' in page
    assert len(page) < 60_000
    ran("watch", tmp_path / "run", "--once", ends=2)
