"""The command ``privbo watch``: a live page on loopback behind a one-time token, or a file that reloads itself.

Who has the printed address opens the page once; from then on the browser's cookie does, and the address is worth
nothing. Requests for another host's name are refused, so that no page of a stranger's can ask for this one.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from privbo.cli.options import say
from privbo.protocol.errors import RunError
from privbo.protocol.files import require_no_link, require_page, write_atomically

LOOPBACK = "127.0.0.1"
Render = Callable[[Mapping[str, str] | None], str]  # from the address' query, None for a file


class _Token:
    """Lets in the browser that brings the token first, by a cookie from then on."""

    def __init__(self) -> None:
        self.text, self._cookie = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._used, self._lock = False, threading.Lock()

    def redeem(self, token: str) -> str | None:
        """Give the cookie for the token, once."""
        with self._lock:
            if self._used or not hmac.compare_digest(token.encode(), self.text.encode()):
                return None
            self._used = True
            return f"privbo={self._cookie}; HttpOnly; SameSite=Strict; Path=/"

    def knows(self, cookies: str) -> bool:
        """Say whether a request's cookies hold ours."""
        found = (part.strip().removeprefix("privbo=") for part in cookies.split(";"))
        return any(hmac.compare_digest(part.encode(), self._cookie.encode()) for part in found)


def live_server(render: Render, port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """Make the server, which serves once ``serve_forever`` is called, and the address that opens it once.

    Args:
        render: Gives the page as it stands.
        port: On loopback; 0 takes a free one.

    Raises:
        RunError: If the port is taken.
    """
    token, lock = _Token(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        """Answers ``GET /`` and nothing else."""

        server_version, sys_version = "privbo", ""

        def do_GET(self) -> None:
            """Exchange the token for a cookie, or show the page to who has it."""
            asked, host = urlsplit(self.path), self.headers.get("Host", "")
            if host not in allowed or asked.path != "/":
                self._answer(HTTPStatus.NOT_FOUND)
            elif "token" in (query := parse_qs(asked.query)):
                cookie = token.redeem(query["token"][0])
                if cookie is None:
                    self._answer(HTTPStatus.FORBIDDEN, "this address was used; start privbo watch again")
                else:
                    self._answer(HTTPStatus.SEE_OTHER, more={"Set-Cookie": cookie, "Location": "/"})
            elif token.knows(self.headers.get("Cookie", "")):
                with lock:
                    self._answer(HTTPStatus.OK, render({name: values[0] for name, values in query.items()}))
            else:
                self._answer(HTTPStatus.FORBIDDEN, "open the address that privbo watch has printed")

        def _answer(self, status: HTTPStatus, text: str = "", more: dict[str, str] | None = None) -> None:
            body = text.encode()
            kind = "text/html" if status is HTTPStatus.OK else "text/plain"
            headers = {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "X-Frame-Options": "DENY",
                "Referrer-Policy": "no-referrer",
            }
            self.send_response(status)
            for name, value in (headers | (more or {})).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            """Print nothing: requests are not logged."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise RunError(f"port {port} on {LOOPBACK} can't be had ({error.strerror}); name another, or 0") from None
    here = server.server_address[1]
    allowed = {f"{LOOPBACK}:{here}", f"localhost:{here}"}
    return server, f"http://{LOOPBACK}:{here}/?token={token.text}"


def write_until(render: Render, path: Path, *, every: float | None, private: bool) -> None:
    """Write the page, say so, and write it again so many seconds later until interrupted; a private one is its owner's.

    Raises:
        RunError: If the file is a link.
    """
    require_no_link(path)
    require_page(path, private=private)
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = os.umask(0o077 if private else 0o022)
    try:
        write_atomically(path, render(None).encode())
        say(str(path) if every is None else f"{path}, every {every:g} s")
        while every is not None:
            time.sleep(every)
            write_atomically(path, render(None).encode())
    finally:
        os.umask(mask)
