"""``python -m tests.docs.look FOLDER``: a built site in a real browser, from disk, wide and narrow, light and dark.

Looked for: messages on the console, requests of anything that is not the site, pages that scroll sideways, text below a
contrast of 4.5, pictures without a text, headings that skip a level, searches that find nothing, and public names to
whose entry the search does not lead. What a page weighs is ``offline``'s.
"""

import sys
import tempfile
import time
from pathlib import Path

import accountant
import accountant.ledger
import privbo
import privbo.flower
import privbo.testing
from tests.browser.chromium import Browser, chromium

ACCESS = Path(__file__).parents[1] / "browser" / "access.js"
KINDS = ("color-contrast", "image-alt", "page-has-heading-one", "heading-order", "html-has-lang", "document-title")
# Texts of pictures that say nothing: a file's name is none.
NAMELESS = "return [...document.images].map(i => i.alt).filter(a => /^$|[.](png|svg)$/.test(a))"
LOOKS = ({"width": 1280}, {"width": 1280, "dark": True}, {"width": 390}, {"width": 390, "dark": True})
# Settings and tools that readers search for, each with an answer, which may be that it is not supported.
SEARCHES = ("noise_multiplier", "sample rate", "optuna", "mlflow", "tensorboard", "wandb", "dask", "opacus", "flower")
PACKAGES = (privbo, accountant, accountant.ledger, privbo.testing, privbo.flower)
# Names of which no result among the first ten leads to the entry itself; Sphinx gives the best one last.
LOST = """const found = name => Search["_performSearch"](...Search["_parseQuery"](name)).slice(-10);
  return arguments[0].filter(name => !found(name).some(result => (result[2] || "").endsWith("." + name)));"""


def faults(browser: Browser, folder: Path, page: Path):
    """Give what is wrong with a page, however it is looked at."""
    for look in LOOKS:
        browser.open(page, **look)
        told = [*browser.problems()]
        told += [f"asks for {url}" for url in browser.requests() if not url.startswith(("data:", folder.as_uri()))]
        if browser.run("return document.documentElement.scrollWidth > innerWidth + 1"):
            told.append("scrolls sideways")
        # The theme draws its symbols from titles that nobody sees.
        seen = [line for line in browser.run(ACCESS.read_text()) if ": title " not in line]
        told += [line for line in seen if line.startswith(KINDS)]
        told += [f"image-alt: {name}" for name in browser.run(NAMELESS)]
        yield from (f"{page.relative_to(folder)} {look}: {line}" for line in told)


def searched(browser: Browser, folder: Path):
    """Give the searches that find nothing."""
    for words in SEARCHES:
        browser.driver.get(f"{(folder / 'search.html').as_uri()}?q={words}")
        for _ in range(50):
            if browser.run("return document.querySelectorAll('#search-results li a').length"):
                break
            time.sleep(0.1)
        else:
            yield f"the search for {words!r} finds nothing"
    names = sorted({name for package in PACKAGES for name in package.__all__})
    yield from (f"the search does not lead to {name}" for name in browser.driver.execute_script(LOST, names))


def main(folder: Path) -> list[str]:
    """Look at every page that is written by hand, and at the pages of the reference."""
    pages = [page for page in sorted(folder.rglob("*.html")) if not page.stem.startswith(("genindex", "search", "py-"))]
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        found = [line for page in pages for line in faults(browser, folder, page)]
        return found + list(searched(browser, folder))


if __name__ == "__main__":
    lines = main(Path(sys.argv[1]).resolve())
    print("\n".join(lines) or "every page is readable, wide and narrow, light and dark, and the search works from disk")
    sys.exit(bool(lines))
