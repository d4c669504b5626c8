"""Sphinx settings of the site; `make docs` writes the generated pages first."""

from __future__ import annotations

import re
from typing import Any

import rlgates

project = "rlgates"
author = "The rlgates developers"
copyright = author
version = release = rlgates.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False  # equations in prose have primes
python_maximum_signature_line_length = 88
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_favicon = "_static/icon.svg"
html_title = f"rlgates {release}"
html_copy_source = False

# Files and folders of the repository, and the pages of the site for them.
_PAGES = {
    r"experiments/results/(\w+)\.md": r"/tables/\1.md",
    r"experiments/results/": "/tables/index.md",
    r"experiments/studies/": "/studies/index.md",
    r"agents/onnx\.py": "/api/rlgates.agents.md",
    r"CHANGELOG\.md": "/reference/changelog.md",
    r"CONTRIBUTING\.md": "/guides/extend.md",
    r"SECURITY\.md": "/guides/files.md#security",
}


def _link_pages(app: Any, document: str, source: list[str]) -> None:
    """Links lead to pages of the site, where in the repository they lead to files."""
    for file, page in _PAGES.items():
        source[0] = re.sub(rf"\]\((?:\.\./)+{file}\)", f"]({page})", source[0])


def _fold_sections(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """List only the pages of the open section in the sidebar: all take half of the bytes."""
    if toctree := context.get("toctree"):
        context["toctree"] = lambda **options: toctree(**{**options, "collapse": True})


def setup(app: Any) -> None:
    """Connect the hooks."""
    app.connect("source-read", _link_pages)
    app.connect("html-page-context", _fold_sections, priority=400)  # before the theme, at 500
