"""The pages in a real browser: silent console, no request, figures with marks, names inert."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.support.wait import WebDriverWait

import privbo as pb
from accountant.wording import upper_text
from privbo.audits.empirical import Audit, audit_run
from privbo.comparisons.comparison import Comparison, recommend
from privbo.comparisons.verdict import Setting
from privbo.reports.audit import write_audit
from privbo.reports.comparison import write_comparison
from privbo.reports.document import Document, environment
from privbo.reports.figure import Axis, Figure, Series
from privbo.reports.report import report
from privbo.reports.report_page import Told, document, statement
from privbo.reports.watch import Watch
from tests.browser.chromium import Browser, chromium, require_browser
from tests.builders import problem
from tests.cli.test_watch import served, site
from tests.reports.runs import EVIL, evil_run, small_run

ACCESS = Path(__file__).with_name("access.js").read_text()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # selenium leaves its log pipe to the collector
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    require_browser()
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pb.Record:
    return small_run(
        tmp_path_factory.mktemp("run") / "run", pb.FedPNE(horizon=400, c=0.02, release_when="always"), rounds=8
    )


def check(browser: Browser, page: Path, figures: tuple[str, ...], **look) -> None:
    """Nothing on the console, nothing asked of anybody, marks in every figure, no sideways scrolling."""
    browser.open(page, **look)
    assert browser.problems() == []
    assert [url for url in browser.requests() if not url.startswith(("data:", page.as_uri()))] == []
    for name in figures:
        assert browser.marks(name) > 0, name
    width = browser.run("return document.documentElement.scrollWidth")
    assert width <= look.get("width", 1280)  # a phone's innerWidth grows with what overflows
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run(ACCESS) == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_report(browser: Browser, finished: pb.Record, width: int, dark: bool) -> None:
    page = pb.write_report(finished)
    assert page.stat().st_size < 300_000
    figures = (
        "epsilon-by-release", "epsilon-by-accountant", "delta-epsilon", "trade-off", "release-norms", "active-nodes"
    )  # fmt: skip
    check(browser, page, figures, width=width, dark=dark)
    assert browser.run("return document.scripts.length") == 0
    headline = browser.run("return document.getElementById('epsilon').textContent")
    assert headline == upper_text(report(finished).smallest_epsilon)
    assert 1.99 < float(headline) <= 2
    assert contrast(browser) > 7


def contrast(browser: Browser) -> float:
    """WCAG contrast of the text; 7 is its strictest grade. The figures' ink must be the text's, however drawn."""
    ink, paper, ticks = browser.run(
        "const s=getComputedStyle(document.body);"
        "const t=document.querySelector('.plot svg text');"
        "return [s.color,s.backgroundColor,getComputedStyle(t).fill];"
    )
    assert ticks == ink
    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_comparison(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    settings = tuple(
        Setting(
            label=f"{evil} {index}", kind="private", epsilon=2.0**index, delta=1e-5,
            strict_epsilon=1.5 * 2.0**index, strict_delta=1e-6, noise_multipliers=(1.0,), releases=3,
            overrides={}, seeds=(0, 1, 2), curves=np.random.default_rng(index).normal(size=(3, 4)),
        )
        for index in range(4)
    )  # fmt: skip
    settings = (*settings, dataclasses.replace(settings[0], label="local only", kind="local", releases=0))
    found = Comparison(name=evil, data="public", measure="final", settings=settings)
    found = dataclasses.replace(found, recommendation=recommend(found, 4.0))
    page = write_comparison(found, folder=tmp_path)
    for width, dark in ((1280, False), (390, True)):
        check(browser, page, ("frontier", "convergence-1", "convergence-4"), width=width, dark=dark)
    assert browser.run("return document.scripts.length") == 0
    assert browser.marks("frontier") >= 12  # four points, each with an error bar and its two caps
    words = browser.run("return document.body.innerText")
    assert words.index("Utility against epsilon") < words.index("Did sharing help?") < words.index("Convergence")


def test_the_audit(browser: Browser, finished: pb.Record, tmp_path: Path) -> None:
    found = audit_run(finished, trials=1000)
    audit = Audit(name="<script>alert(1)</script>", clipping=pb.audit(finished), empirical=found)
    page = write_audit(audit, tmp_path / "audit.html")
    for width in (1280, 390):
        check(browser, page, ("bias-and-noise", "error-by-bound", "norms"), width=width, dark=True)
    assert "not covered by epsilon" in browser.run("return document.body.innerText")


def test_the_statement_fits_on_one_sheet(browser: Browser, finished: pb.Record, tmp_path: Path) -> None:
    page = statement(report(finished)).write(tmp_path / "statement.html")
    for width, dark in ((1280, False), (390, True)):
        check(browser, page, (), width=width, dark=dark)
    words = browser.run("return document.body.innerText")
    assert words.count("[to be filled in]") == 5  # the key among them: nothing of this run was signed
    assert finished.ledger.head in words
    browser.open(page)
    assert browser.pdf().count(b"/Type /Page\n") == 1


def test_the_longest_statement_fits_on_one_sheet_too(browser: Browser, tmp_path: Path) -> None:
    """Persons' validation records on a ledger that runs share: once on two sheets."""
    wards = problem(objective=lambda _client, _params: np.full(3000, 0.5), n_records=[3000] * 4, score_range=(0, 1))
    hidden = {"unit": "record", "protects": "validation records", "records_per_person": 2}
    where = str(tmp_path / "people.sqlite")
    ledger = pb.SharedLedger(path=where, population="patients of hospitals in the north", epsilon=5.0, delta=1e-6)
    privacy = pb.Privacy(epsilon=2.0, delta=1e-6, **hidden)
    record = pb.run(wards, privacy=privacy, rounds=5, directory=tmp_path / "run", ledger=ledger)
    told = Told(purpose="the dose of one drug " * 3, organisation="the hospital " * 4, client_is="a hospital " * 4)
    browser.open(statement(report(record), told=told).write(tmp_path / "statement.html"))
    assert browser.pdf().count(b"/Type /Page\n") == 1


def test_barriers_are_seen(browser: Browser, tmp_path: Path) -> None:
    """The planted faults: grey on white, a figure and a picture without words, levels left out, a name used twice."""
    (tmp_path / "bad.html").write_text(
        "<!doctype html><html><body style='background:#fff'><h2>x</h2><h4>y</h4><p style='color:#aaa'>pale</p>"
        "<svg><g clip-path='x'><path style='fill:none;stroke:#eee'/></g></svg>"
        "<img src='data:,'><p id='a'></p><p id='a'></p><th></th>"
        "<table><tr><th>n</th></tr></table></body></html>"
    )
    browser.open(tmp_path / "bad.html")
    seen = {words.partition(":")[0] for words in browser.run(ACCESS)}
    assert seen == {
        "color-contrast", "non-text contrast", "image-alt", "svg-img-alt", "page-has-heading-one", "heading-order",
        "landmark-one-main", "html-has-lang", "document-title", "duplicate-id", "th scope",
    }  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_watched_runs_and_a_site(browser: Browser, finished: pb.Record, tmp_path: Path, width: int, dark: bool) -> None:
    folders = [finished.home.path, finished.home.path, site(tmp_path / "site" / "run")]
    page = tmp_path / "live.html"
    page.write_text(Watch(directories=folders, private=True, every=600).page())
    check(browser, page, ("spent-0", "norms-1", "best-2"), width=width, dark=dark)
    words = browser.run("return document.body.innerText")
    assert "PRIVATE facts" in words
    assert "the best quarter in front" in words


def test_a_live_page_opens_once_by_its_address_and_asks_for_itself_again(browser: Browser, finished: pb.Record) -> None:
    with served(Watch(directories=[finished.home.path], every=1).page) as address:
        browser.driver.get(address)
        assert "token" not in browser.driver.current_url
        browser.run("document.title = 'old'")
        WebDriverWait(browser.driver, 30).until(lambda seen: seen.title == "Runs that are going on")
        assert browser.problems() == []
        assert "It shows public facts only" in browser.run("return document.body.innerText")
        browser.driver.get(address)
        assert "was used" in browser.run("return document.body.innerText")


def test_names_are_inert(browser: Browser, tmp_path: Path) -> None:
    found = dataclasses.replace(report(evil_run(tmp_path / "run")), name=EVIL)  # which a run itself refuses
    browser.open(document(found).write(tmp_path / "page.html"))
    assert browser.problems() == []
    assert browser.run("return document.scripts.length") == 0
    assert "<script>alert(1)</script>" in browser.run("return document.body.innerText")


def test_a_planted_script_does_not_run_and_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """The policy holds where escaping fails, and these tests would see it."""
    planted = environment().from_string(
        '{% extends "base.html.j2" %}{% import "macros.html.j2" as html %}{% block content %}'
        "planted<script>document.title='ran'</script>{{ html.figure(figures, 'f', '') }}{% endblock %}"
    )
    drawn = Figure(series=(Series(label="a", x=[1, 2], y=[1, 2]),), x=Axis(label="x"), y=Axis(label="y"))
    page = Document(title="still", template=planted, figures={"f": drawn})
    browser.open(page.write(tmp_path / "page.html"))
    assert browser.run("return document.title") == "still"
    assert any("Content Security Policy" in message for message in browser.problems())
    assert browser.marks("f") > 0


def test_on_paper(browser: Browser, finished: pb.Record) -> None:
    """Printed from a dark screen the ink is black and the page has some sheets."""
    browser.open(document(report(finished)).write(finished.home.path / "paper.html"), dark=True)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert browser.run("return getComputedStyle(document.querySelector('.plot svg text')).fill") == "rgb(0, 0, 0)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert browser.pdf().count(b"/Type /Page\n") >= 2
