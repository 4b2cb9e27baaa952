"""``python -m tests.docs.offline FOLDER``: a built site fetches nothing, has no dead link and no heavy page.

A page's weight is what a browser fetches before anybody scrolls: the page itself, its scripts and style sheets, and
pictures that are not loaded lazily; as stored, so a server that compresses sends about a fifth of it.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

PAGE, PICTURE, SITE = 1_000_000, 250_000, 25_000_000  # bytes at most
_ELSEWHERE = re.compile(r"url\(\s*['\"]?https?://|@import\s+['\"]?https?://")


class _Page(HTMLParser):
    """Collects what a browser would fetch, and where links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.later: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next", "alternate"}:
            self.fetched.append(values.get("href", ""))
        elif tag in {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}:
            addresses = [values[name] for name in ("src", "data", "srcset") if name in values]
            self.fetched += addresses
            self.later += addresses if values.get("loading") == "lazy" else []
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
        dead = [url for url in local if url.path and not _target(url.path, path.parent, folder).exists()]
        found += [f"{path}: {url.geturl()} leads nowhere" for url in dead]
    for path in sorted(folder.rglob("*.css")):
        found += [f"{path}: fetches {match[0]}" for match in _ELSEWHERE.finditer(path.read_text())]
    return found


def weights(folder: Path) -> list[str]:
    """Pages, pictures and a site that are heavier than a reader on a telephone should wait for, one line each."""
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    drawn = [path for path in sizes if path.suffix in {".png", ".svg", ".jpg", ".gif"}]
    heavy = [path for path in drawn if sizes[path] > PICTURE]
    found = [f"{path}: {sizes[path]:,} bytes; a picture has {PICTURE:,} at most" for path in heavy]
    for path in (path for path in sizes if path.suffix == ".html"):
        page = _Page()
        page.feed(path.read_text())
        local = {urlparse(url).path for url in set(page.fetched) - set(page.later) if not urlparse(url).scheme}
        parts = {_target(url, path.parent, folder).resolve() for url in local if url}
        weight = sizes[path] + sum(part.stat().st_size for part in parts if part.exists())
        if weight > PAGE:
            found.append(f"{path}: {weight:,} bytes with what it fetches at once; at most {PAGE:,}")
    if sum(sizes.values()) > SITE:
        found.append(f"{folder}: {sum(sizes.values()):,} bytes; at most {SITE:,}")
    return found


def _target(path: str, beside: Path, root: Path) -> Path:
    return root / unquote(path).lstrip("/") if path.startswith("/") else beside / unquote(path)


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").exists():
        sys.exit(f"{site} holds no site")
    lines = faults(site) + weights(site)
    print("\n".join(lines) or f"{site}: nothing is fetched from elsewhere, no local link is dead, no page is heavy")
    sys.exit(bool(lines))
