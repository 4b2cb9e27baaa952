"""``python -m tests.docs.offline FOLDER``: a built site fetches nothing from elsewhere and has no dead local link."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

_ELSEWHERE = re.compile(r"url\(\s*['\"]?https?://|@import\s+['\"]?https?://")


class _Page(HTMLParser):
    """Collects what a browser would fetch, and where links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next", "alternate"}:
            self.fetched.append(values.get("href", ""))
        elif tag in {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}:
            self.fetched += [values[name] for name in ("src", "data", "srcset") if name in values]
        elif tag == "a":
            self.links.append(values.get("href", ""))


def faults(folder: Path) -> list[str]:
    """What is wrong, one line each."""
    found = []
    for path in sorted(folder.rglob("*.html")):
        page = _Page()
        page.feed(path.read_text())
        found += [f"{path}: fetches {url}" for url in page.fetched if urlparse(url).netloc]
        local = [url for url in map(urlparse, page.links + page.fetched) if not url.scheme and not url.netloc]
        found += [
            f"{path}: {url.geturl()} leads nowhere"
            for url in local
            if url.path and not _target(url.path, path.parent, folder).exists()
        ]
    for path in sorted(folder.rglob("*.css")):
        found += [f"{path}: fetches {match[0]}" for match in _ELSEWHERE.finditer(path.read_text())]
    return found


def _target(path: str, beside: Path, root: Path) -> Path:
    return root / unquote(path).lstrip("/") if path.startswith("/") else beside / unquote(path)


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").exists():
        sys.exit(f"{site} holds no site")
    lines = faults(site)
    print("\n".join(lines) or f"{site}: nothing is fetched from elsewhere, no local link is dead")
    sys.exit(bool(lines))
