"""The site in a browser: its pages, the search, the filter of the ledger."""

from __future__ import annotations

import base64
import functools
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.site import ROOT, build_site

pytest.importorskip("selenium", reason="needs the extra [browser]")
pytest.importorskip("sphinx", reason="needs the extra [docs]")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    "--disable-dev-shm-usage",  # which is small in a container
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # Whatever a page asks of another host fails, and is an error in its console.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
WIDE, NARROW = (1280, 900), (390, 844)
SHOWN = (
    *("index", "cores/lstm", "gates/ur", "environments/ActiveMatch", "studies/match"),
    *("tables/LEDGER", "api/rlgates.nn", "api/command_line"),
)
WHOLE = "return document.readyState === 'complete'"
# What a page shows, as the browser sees it.
LOOK = """
return {
  outside: performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:")),
  overflow: document.documentElement.scrollWidth - window.innerWidth,
  broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
};
"""
ROWS = """
return [...document.querySelectorAll("table.filterable tbody tr")]
  .filter((row) => row.checkVisibility()).map((row) => row.textContent);  // closed details, too
"""
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver"
)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and does not say so."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory)


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where the site is served, on this machine alone."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def resize(browser: Any, size: tuple[int, int]) -> None:
    """Set the size of the page; a window cannot be as narrow as a telephone."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def open_page(browser: Any, url: str) -> None:
    """`get` may return before a page is there whole."""
    browser.get(url)
    WebDriverWait(browser, 30).until(lambda page: page.execute_script(WHOLE))


@pytest.mark.parametrize("nth", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page(browser: Any, url: str, site: Path, nth: int) -> None:
    """On a telephone: nothing is broken, too wide, or from elsewhere.

    Of the pages that `docs/generate.py` writes, in folders such as cores/, it looks at each nth.
    """
    resize(browser, NARROW)
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    written = [
        name for name in names if name.partition("/")[0] in ("guides", "reference", "results", name)
    ]
    faults = list[str]()
    for name in dict.fromkeys([*written, *names[::nth]]):
        open_page(browser, f"{url}{name}")
        page = browser.execute_script(LOOK)
        faults += [f"{name}: {entry['message']}" for entry in browser.get_log("browser")]
        faults += [f"{name} fetches {what}" for what in page["outside"]]
        faults += [f"{name} has a broken image {what}" for what in page["broken"]]
        if page["overflow"] > 0:
            faults.append(f"{name} is {page['overflow']} pixels too wide")
    assert faults == []


def test_the_search_box_finds_a_core(browser: Any, url: str) -> None:
    resize(browser, WIDE)
    open_page(browser, f"{url}index.html")
    browser.find_element(By.NAME, "q").send_keys("mogrifier", Keys.ENTER)
    results = WebDriverWait(browser, 30).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, "#search-results a[href*='cores/mogrif']")
    )
    browser.execute_script("arguments[0].click()", results[0])  # those below may still move it
    WebDriverWait(browser, 30).until(lambda page: "Mogrifier" in page.title)
    assert "cores/mogrifier.html" in browser.current_url


def test_the_ledger_is_filtered(browser: Any, url: str) -> None:
    ledger = (ROOT / "experiments" / "results" / "LEDGER.md").read_text()
    claims = ledger.count("| **")
    verdict, chosen = Counter(re.findall(r"\| \*\*(.+?)\*\* \|", ledger)).most_common()[-1]
    assert 0 < chosen < claims

    def rows() -> list[str]:
        found: list[str] = browser.execute_script(ROWS)
        return found

    for size in (WIDE, NARROW):
        resize(browser, size)
        open_page(browser, f"{url}tables/LEDGER.html")
        assert len(rows()) == claims
        menus = browser.find_elements(By.CSS_SELECTOR, ".filter select")
        assert len(menus) == 2  # verdict and paper
        Select(menus[0]).select_by_visible_text(verdict)
        assert len(rows()) == chosen
        assert browser.find_element(By.CSS_SELECTOR, ".filter output").text == (
            f"{chosen} of {claims}"
        )
        Select(menus[0]).select_by_visible_text("all")
        browser.find_element(By.CSS_SELECTOR, ".filter input").send_keys("REFINE ohno")
        assert 0 < len(rows()) < claims
        assert all("refine" in row.lower() and "ohno" in row.lower() for row in rows())


def test_the_ledger_is_whole_without_javascript(browser: Any, url: str) -> None:
    resize(browser, WIDE)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, f"{url}tables/LEDGER.html")
        rows = browser.find_elements(By.CSS_SELECTOR, "table.filterable tbody tr")
        assert len(rows) > 50
        assert all(row.is_displayed() for row in rows[::10])
        assert browser.find_elements(By.CSS_SELECTOR, ".filter") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_screenshots(browser: Any, url: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Of one page of each kind, in pytest's temporary folder: for a look, and none is empty."""
    resize(browser, size)
    for page in SHOWN:
        open_page(browser, f"{url}{page}.html")
        image = base64.b64decode(browser.get_screenshot_as_base64())
        (tmp_path / f"{page.replace('/', '_')}.png").write_bytes(image)
        assert len(image) > 10_000, page
