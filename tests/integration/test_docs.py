"""The site is built without a warning, its links lead somewhere, and every name has its page."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.site import ROOT, build_site

from rlgates.envs import ENVS
from rlgates.experiments.cli import main as cli
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.tasks import TASKS
from rlgates.gates import GATES
from rlgates.registry import CORES

NEEDED = ("furo", "myst_parser", "sphinx")
PAGES = (
    *(f"cores/{name}" for name in CORES),
    *(f"gates/{name or 'plain'}" for name in GATES),
    *(f"environments/{kind.__name__}" for kind in ENVS.values()),
    *(f"tasks/{name}" for name in TASKS),
    *(f"studies/{name}" for name in STUDIES),
)

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="needs the extra [docs]"
)


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory)


def test_every_name_has_a_page(site: Path) -> None:
    missing = [page for page in PAGES if not (site / f"{page}.html").exists()]
    assert missing == []


def test_pages_of_studies_name_the_seeds_that_were_added(site: Path) -> None:
    for name, study in STUDIES.items():
        words = re.sub(r"\s+", " ", (site / f"studies/{name}.html").read_text())
        added = f"Of these, {study.added[0]} to {study.added[-1]} were added" if study.added else ""
        assert added in words
        assert bool(study.added) == ("were added after a look at the results" in words), name
    assert any(study.added for study in STUDIES.values())


def test_links_lead_from_the_front_page_to_all_files_and_anchors(site: Path) -> None:
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: Page((site / name).read_text()) for name in files if name.endswith(".html")}
    count, broken, leads_to = 0, set(), {name: set[str]() for name in pages}
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                count += 1
                path = os.path.join(os.path.dirname(name), unquote(parts.path))
                target = os.path.normpath(path) if parts.path else name
                leads_to[name].add(target)
                anchor = unquote(parts.fragment)
                known = pages[target].anchors if anchor and target in pages else {anchor}
                if target not in files or anchor not in known:
                    broken.add(f"{name} -> {target}#{anchor}")
    assert count > 5_000
    assert broken == set()
    found, queue = set[str](), {"index.html"}
    while queue:
        found |= queue
        queue = {target for name in queue for target in leads_to[name] & pages.keys()} - found
    assert found >= pages.keys() - {"search.html"}  # which the search box opens


def test_the_page_of_a_core_says_what_is_known(site: Path) -> None:
    text = (site / "cores" / "janet.html").read_text()
    for known in (
        "(1 - f(z - beta)) tanh(L_u)",
        "16,640",
        "input_scale",
        "2.3e-15",
        "Claims",
        "[0.47, 0.78]",
    ):
        assert known in text


@pytest.mark.parametrize("module", ["rlgates", "rlgates.nn", "rlgates.envs", "rlgates.agents"])
def test_every_public_name_has_an_entry(site: Path, module: str) -> None:
    """Its own, or one that leads to that of the module where it comes from."""
    text = (site / "api" / f"{module}.html").read_text()
    anchors = Page(text).anchors
    elsewhere = set(re.findall(r">(\w+)</span></code>: see ", text))
    names = set(importlib.import_module(module).__all__)
    assert names
    assert {name for name in names if f"{module}.{name}" not in anchors} <= elsewhere


def test_every_option_is_explained(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every command, whose help names it."""
    text = (site / "api" / "command_line.html").read_text()
    for words in (["train"], ["sweep"], ["bench", "cores"]):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help-all"])
        options = capsys.readouterr().out
        names = set(re.findall(r"^│? +(--[a-z][a-z-]+)", options, re.MULTILINE)) - {"--help"}
        assert len(names) > 5
        assert {name for name in names if name not in text} == set()


def test_search_finds_a_core(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert '"cores/mogrifier"' in index
    assert "mogrifi" in index  # its stem


def test_a_core_without_a_note_is_an_error(tmp_path: Path) -> None:
    """The guide says of every core when to use it."""
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("_build", "__py*"))
    guide = docs / "guides" / "which_core.md"
    guide.write_text(guide.read_text().replace("### janet\n", "### other\n"))
    finished = subprocess.run(
        [sys.executable, "-c", "import generate; generate.note_on('janet')"],
        cwd=docs, env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(docs)))},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert "has no note on janet" in finished.stderr
