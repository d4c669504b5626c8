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

_RESULTS = re.compile(r"\]\((?:\.\./)+experiments/results/(\w+)\.md\)")


def _link_tables(app: Any, document: str, source: list[str]) -> None:
    """Tables of results are pages of the site; in the repository the links lead to the files."""
    source[0] = _RESULTS.sub(r"](/tables/\1.md)", source[0])


def setup(app: Any) -> None:
    """Connect the hook."""
    app.connect("source-read", _link_tables)
