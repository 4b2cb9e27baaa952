"""A real headless Chromium, driven by Debian's chromedriver, for tests that look at pages."""

import json
import os
import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def require_browser() -> None:
    """Skip without Chromium, or fail where the browser is required."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not missing:
        return
    if os.environ.get("CI_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{', '.join(missing)} missing; continuous integration must provide it")
    pytest.skip(f"{', '.join(missing)} missing")


@contextmanager
def chromium(profile):
    """A browser with a fresh profile."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, page, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page at a width, light or dark; what it logged before is forgotten."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(page.as_uri())

    def run(self, script: str):
        return self.driver.execute_script(script)

    def problems(self) -> list[str]:
        """Everything the console said that is not mere information.

        Messages come some time after they were written, in order: they are read until a last one of ours is there.
        """
        said: list[dict[str, str]] = []
        self.run("console.info('that was all')")
        while not any("that was all" in entry["message"] for entry in said):
            said += self.driver.get_log("browser")
        return [entry["message"] for entry in said if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened.

        A slow start of the browser still loads its own first tab then; what documents of the browser itself ask for
        (``chrome://``, ``chrome-untrusted://``) is not the page's doing.
        """
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = (m["params"] for m in messages if m["method"] == "Network.requestWillBeSent")
        return [
            p["request"]["url"] for p in asked if not p["documentURL"].startswith(("chrome://", "chrome-untrusted://"))
        ]

    def marks(self, figure: str) -> int:
        """Points, lines, bands and bars drawn in a figure."""
        return int(self.run(f"return document.querySelectorAll('#{figure} svg [clip-path]').length"))

    def pdf(self) -> bytes:
        """The page as printed."""
        import base64

        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
