"""A ledger in a real PostgreSQL is the ledger of a file: its rules, its durability, and who may do what."""

import json
import shlex
import socketserver
import subprocess
import threading
import time

import pytest

pytest.importorskip("psycopg")

import psycopg

from accountant.errors import LedgerError
from accountant.ledger import Budget, Ledger
from accountant.ledger.address import endpoint_of, place_of
from tests.accountant.builders import charge, policy
from tests.accountant.ledger_worker import EVENT
from tests.accountant.lives import BOUND, PAYLOAD, WORKER, life, sent, started, unpaid, work
from tests.accountant.postgres_server import ADDRESSES, SECRET, Server, opened

APART = ["unshare", "--user", "--map-root-user", "--net"]


def test_it_answers_as_a_file_does(server: Server, tmp_path) -> None:
    address = server.made("conformance", tmp_path / "commits", BOUND)
    with Ledger.open(address) as ledger:
        life(ledger)
        assert ledger.guarantees
    assert len((tmp_path / "commits").read_text().splitlines()) == 5  # a line for each row, as beside a file
    with Ledger.open(address) as again:
        assert again.verify().ok
        assert again.stored_release("r/0") == PAYLOAD


def test_who_appends_may_do_nothing_else(server: Server, tmp_path) -> None:
    address = server.made("rights", tmp_path / "commits", policy())
    with Ledger.open(address) as ledger:
        charge(ledger, "r/0", EVENT)
    for statement in (
        "UPDATE rights.charges SET body = 'free'",
        "DELETE FROM rights.charges",
        "TRUNCATE rights.charges",
        "UPDATE rights.identity SET policy = ''",
        "ALTER TABLE rights.charges ADD COLUMN more text",
        "CREATE TRIGGER t BEFORE INSERT ON rights.charges EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP TABLE rights.charges",
    ):
        with psycopg.connect(server.url("appender")) as appender, pytest.raises(psycopg.errors.InsufficientPrivilege):
            appender.execute(statement)
    assert "may change or delete" in str(opened(server.address("rights", tmp_path / "w2", role="owner")))
    with server.owning() as owner:
        table, config = "rights.charges", "; SELECT pg_reload_conf()"
        for change, back, words in (
            (f"GRANT UPDATE ON {table} TO appender", f"REVOKE UPDATE ON {table} FROM appender", "may change"),
            (f"GRANT UPDATE (body) ON {table} TO appender", f"REVOKE UPDATE (body) ON {table} FROM appender", "may ch"),
            ("GRANT owner TO appender", "REVOKE owner FROM appender", "may change"),
            ("CREATE VIEW rights.more AS SELECT 1", "DROP VIEW rights.more", "more"),
            (f"ALTER TABLE {table} SET UNLOGGED", f"ALTER TABLE {table} SET LOGGED", "charges"),
            (*(f"ALTER TABLE {table} {verb} ROW LEVEL SECURITY" for verb in ("ENABLE", "DISABLE")), "charges"),
            (f"CREATE RULE r AS ON INSERT TO {table} DO INSTEAD NOTHING", f"DROP RULE r ON {table}", "charges"),
            (f"ALTER SYSTEM SET fsync = off{config}", f"ALTER SYSTEM RESET fsync{config}", "durable"),
        ):
            for statements in (change, back):
                for part in statements.split(";"):
                    owner.execute(part)
                time.sleep(0.3 * ("SYSTEM" in change))
                assert statements is back or words in str(opened(address)), change
        owner.execute("VACUUM rights.charges")
        assert opened(address) is None
        owner.execute("UPDATE rights.charges SET body = 'free'")
    assert "does not match its digest" in str(opened(address))


def test_a_charge_is_on_disk_whatever_the_role_was_set_to(server: Server, tmp_path) -> None:
    address = server.made("durable", tmp_path / "commits", policy())
    with server.owning() as owner:
        owner.execute("ALTER ROLE appender SET synchronous_commit = off")
        try:
            with Ledger.open(address) as ledger:
                charge(ledger, "r/0", EVENT)
                server.kill()
        finally:
            server.start()
    with server.owning() as owner:
        owner.execute("ALTER ROLE appender RESET synchronous_commit")
    with Ledger.open(address) as ledger:
        assert [entry.release_id for entry in ledger.entries()] == ["r/0"]


def test_a_server_that_is_killed_loses_nothing_and_the_same_object_goes_on(server: Server, tmp_path) -> None:
    address = server.made("killed", tmp_path / "commits", policy())
    with Ledger.open(address) as ledger:
        for index in range(3):
            charge(ledger, f"r/{index}", EVENT)
        server.kill()
        try:
            with pytest.raises(LedgerError, match="storage failed"):
                charge(ledger, "r/3", EVENT)
        finally:
            server.start()
        assert not charge(ledger, "r/3", EVENT).known
        assert ledger.verify().ok
        assert len(ledger.entries()) == 4


def test_a_killed_client_leaves_nothing_released_and_not_charged(server: Server, tmp_path) -> None:
    address = server.made("clients", tmp_path / "commits", policy())
    work("crash", address, 12, "sound")
    assert len(sent(tmp_path / "wire")) >= 12
    assert unpaid(address, tmp_path / "wire") == []


@pytest.mark.long
def test_eight_writers_in_two_networks_spend_one_budget_exactly(server: Server, tmp_path) -> None:
    """Four writers in each of two network namespaces that know only the server's socket; each has a commit log."""
    apart = [] if subprocess.run([*APART, "true"], check=False, capture_output=True).returncode else APART
    kept = policy(Budget(epsilon=0.9, delta=1e-5, rule="gaussian"))
    with Ledger.create(None, kept) as alone:
        count = 0
        while alone.check(EVENT).allowed:
            charge(alone, f"a/{count}", EVENT)
            count += 1
    assert count >= 10
    server.made("race", tmp_path / "maker", kept)
    groups = []
    for place in range(2):
        names = [f"w{place}{i}" for i in range(4)]
        addresses = [server.address("race", tmp_path / name, over_socket=True) for name in names]
        lines = [f"{shlex.join([*WORKER, 'race', *both, ''])} &" for both in zip(addresses, names, strict=True)]
        script = "\n".join(["ip link 2>/dev/null | grep -c UP >&2", *lines, "wait"])
        groups.append(started(*apart, "sh", "-c", script))
    time.sleep(2)
    (tmp_path / "go").touch()
    said = [group.communicate(timeout=300) for group in groups]
    accepted = [json.loads(line)["accepted"] for out, _ in said for line in out.splitlines()]
    assert len(accepted) == 8, said
    assert sum(accepted) == count
    with Ledger.open(server.address("race", tmp_path / "reader")) as ledger:
        assert ledger.verify().ok
        assert len(ledger.entries()) == count
        assert not ledger.check(EVENT).allowed


def test_who_does_not_wait_its_turn_is_refused_by_the_database(server: Server, tmp_path) -> None:
    """Two transactions that both read the same last row: one of them is taken back, with or without our lock."""
    address = server.made("turns", tmp_path / "commits", policy())
    with psycopg.connect(server.url("appender"), autocommit=True) as rude, Ledger.open(address) as ledger:
        rude.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        assert rude.execute("SELECT count(*) FROM turns.charges").fetchone() == (0,)
        charge(ledger, "r/0", EVENT)
        with pytest.raises((psycopg.errors.SerializationFailure, psycopg.errors.UniqueViolation)):
            rude.execute("INSERT INTO turns.charges VALUES (1, 'rude', '', '', '')")
        assert ledger.verify().ok


def test_an_older_database_is_noticed_by_everybody_who_had_seen_more(server: Server, tmp_path) -> None:
    address = server.made("older", tmp_path / "commits", policy())
    with Ledger.open(address) as ledger:
        charge(ledger, "r/0", EVENT)
    server.stop()
    copy = server.copied()
    server.start()
    with Ledger.open(address) as ledger, Ledger.open(server.address("older", tmp_path / "reader")) as reader:
        receipt = charge(ledger, "r/1", EVENT)
        assert len(reader.entries()) == 2
    assert opened(server.address("older", tmp_path / "late")) is None  # has charged nothing, and remembers what it saw
    server.stop()
    server.set_back(copy)
    server.start()
    for commit_log in ("commits", "late"):
        assert "row 2 was committed and is gone" in str(opened(server.address("older", tmp_path / commit_log)))
    with Ledger.open(server.address("older", tmp_path / "new")) as ledger:
        assert not ledger.verify([(receipt.sequence, receipt.head)]).ok
    with Ledger.open(address, recovering=True) as ledger:
        assert [row[:2] for row in ledger.lost()] == [("charges", 2)]


def test_a_network_is_crossed_with_verified_encryption_and_this_users_authority_only(server, tmp_path, monkeypatch):
    from privbo.flower.keys import AUTHORITY, CERTIFICATE, KEY, make_keys

    monkeypatch.setenv("HOME", str(tmp_path))  # whoever runs the tests may have an authority of their own
    server.made("far", tmp_path / "commits", policy())
    far, near = (server.address("far", tmp_path / "commits", host=host) for host in reversed(ADDRESSES))
    assert "storage failed" in str(opened(far))  # it has no certificate yet
    keys = make_keys(tmp_path / "keys", sites=["north"], hosts=[ADDRESSES[1]])
    other = make_keys(tmp_path / "other", sites=["north"], hosts=[ADDRESSES[1]])
    server.encrypt(keys / CERTIFICATE, keys / KEY)
    try:
        assert "certificate verify failed" in str(opened(far))  # the system's authorities do not know it
        monkeypatch.setenv("PGSSLROOTCERT", str(other / AUTHORITY))
        assert "certificate verify failed" in str(opened(far))
        for weak in ("disable", "require"):  # what this user's environment says of other databases makes it no weaker
            monkeypatch.setenv("PGSSLMODE", weak)
            assert "certificate verify failed" in str(opened(far))
        monkeypatch.setenv("PGSSLROOTCERT", str(keys / AUTHORITY))
        assert opened(far) is None
        monkeypatch.delenv("PGSSLMODE")
        assert opened(near) is None
        for weak in ("disable", "require"):  # what the address does not say must not lead over a network either
            for name, value in {"PGHOSTADDR": ADDRESSES[1], "PGSSLMODE": weak}.items():
                monkeypatch.setenv(name, value)
            assert "leads to 127.0.0.2" in str(opened(near))
        monkeypatch.delenv("PGHOSTADDR")
        monkeypatch.delenv("PGSSLMODE")
        monkeypatch.delenv("PGSSLROOTCERT")
        service = tmp_path / "services"
        service.write_text(f"[far]\nhost={ADDRESSES[1]}\nsslmode=disable\n")
        monkeypatch.setenv("PGSERVICEFILE", str(service))
        monkeypatch.setenv("PGSERVICE", "far")
        tail = f"ledger=far&commits={tmp_path / 'commit log'}"
        assert "leads to 127.0.0.2" in str(opened(f"postgresql://appender@/postgres?port={server.port}&{tail}"))
    finally:
        server.encrypt(None, None)


def asking(kind: int, more: bytes) -> tuple[socketserver.TCPServer, list[bytes]]:
    """A server on loopback that asks whoever connects for a password in its own way, and what it was sent."""
    received = []

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            while len(request := self.request.recv(4096)) == 8:  # TLS is offered: no
                self.request.sendall(b"N")
            body = kind.to_bytes(4, "big") + more
            self.request.sendall(b"R" + (4 + len(body)).to_bytes(4, "big") + body)
            received.append(request)
            while chunk := self.request.recv(4096):
                received.append(chunk)

    server = socketserver.TCPServer(("127.0.0.1", 0), Answer)
    server.handle_error = lambda *_: None  # whoever hangs up
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, received


@pytest.mark.parametrize(("kind", "more"), [(3, b""), (5, b"salt"), (0, b"")], ids=["plain", "md5", "none"])
def test_no_server_is_sent_a_password_and_none_is_believed_unproven(kind: int, more: bytes, tmp_path) -> None:
    """This user's file of passwords has a line for every host."""
    listening, received = asking(kind, more)
    problem = str(opened(f"postgresql://a@127.0.0.1:{listening.server_address[1]}/db?commits={tmp_path / 'w'}"))
    listening.shutdown()  # once what was asked has been answered
    listening.server_close()
    assert received
    assert "authentication method requirement" in problem
    assert SECRET.encode() not in b"".join(received)
    assert not any(chunk.startswith(b"p") for chunk in received)  # no answer of any kind


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://a:secret@localhost/db?commits=w", "password"),
        ("postgresql://a@localhost/db?commits=w&password=secret", "password"),
        ("postgresql://a@localhost/db?commits=w&passfile=secret", "password"),
        ("postgresql://a@localhost/db", "commits"),
        ("postgresql://localhost/db?commits=w", "role"),
        ("postgresql://a@localhost/db?commits=w&ledger=p;drop", "plain name"),
        ("postgresql://a@localhost,db.example/db?commits=w", "single host"),
        ("postgresql://a@/db?commits=w&host=/run/postgresql,db.example", "single host"),
        ("postgresql://a@localhost/db?commits=w&host=db.example", "single host"),
        ("postgresql://a@localhost:5/db?commits=w&port=6", "single host"),
        ("postgresql://a@localhost:db/db?commits=w", "single host"),
        ("postgresql://a@[::1/db?commits=w", "no address"),
        ("postgresql://a@localhost/db?commits=w&ledger=a&ledger=b", "twice"),
        *((f"postgresql://a@localhost/db?commits=w&{name}=x", f"names {name};") for name in (
            "sslmode", "sslrootcert", "sslcert", "sslkey", "service", "servicefile", "hostaddr", "user", "dbname",
            "require_auth", "gssencmode", "channel_binding", "options", "application_name", "connect_timeout",
            "target_session_attrs", "krbsrvname", "sslcrl", "SSLMODE",
        )),
    ],
)  # fmt: skip
def test_an_address_names_host_port_database_role_commit_log_and_ledger_and_nothing_else(address, words):
    with pytest.raises(LedgerError, match=words) as caught:
        place_of(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("postgresql://a@db.example:6/w%20d", ("db.example", "6", "w d", "a")),
        ("postgresql://a@[::1]:5/db", ("::1", "5", "db", "a")),
        ("postgres://a%40b@/db?host=/run/postgresql&port=7", ("/run/postgresql", "7", "db", "a@b")),
        ("postgresql://a@%2FRun%2Fpg/db", ("/Run/pg", "", "db", "a")),
        ("postgresql://a@/", ("", "", "", "a")),
    ],
)
def test_what_an_address_names_is_read(address: str, endpoint: tuple[str, ...]) -> None:
    found = endpoint_of(address)
    assert (found.host, found.port, found.database, found.role) == endpoint


def test_nobody_makes_a_ledger_by_the_way(server: Server, tmp_path) -> None:
    address = server.address("nowhere", tmp_path / "commits")
    with pytest.raises(LedgerError, match="ledger make"):
        Ledger.open(address)
    with pytest.raises(LedgerError, match="ledger make"):
        Ledger.create(address, policy())
    server.made("nowhere", tmp_path / "commits", policy())
    with pytest.raises(LedgerError, match="already exists"):
        server.made("nowhere", tmp_path / "commits", policy())
