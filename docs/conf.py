"""Sphinx: `make docs` builds the site into build/docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

os.environ.setdefault("ARENA_DRIVER", "sim")

import arena

project = "arena"
author = "the arena authors"
version = release = arena.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["benchmarks/*"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Inherited ones too, such as Arena.allocate, but not what every object, exception or shown thing has.
autodoc_default_options = {"members": True, "inherited-members": "BaseException,pybind11_object,object,dict,Shown"}
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
autodoc_mock_imports = ["numba", "cuda", "rmm", "distributed"]  # for modules of frameworks; the site needs none of them

html_theme = "furo"
html_title = f"arena {release}"
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

# Pages link to sources and to pages beside docs/, as people read them in the repository. The site has the latter under
# other names, and shows the former as plain text.
INSIDE = {"ARCHITECTURE.md": "how-it-works.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}


def plain(text: str, target: str) -> str:
    return text if text.startswith("`") or text == target else f"{text} (`{target}`)"


def keep_links_inside(app: Any, page: str, source: list[str]) -> None:
    up = "../" * (page.count("/") + 1)

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if target in INSIDE:
            return f"[{text}]({up[3:]}{INSIDE[target]}{anchor})"
        return plain(text, target)

    source[0] = re.sub(rf"(?<!!)\[([^\]]+)\]\({re.escape(up)}([^)#.][^)#]*)(#[^)]*)?\)", replaced, source[0])


def keep_included_links_inside(app: Any, path: Any, page: str, source: list[str]) -> None:
    """What is included from the repository's root links to docs/, and to files beside itself."""

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if target.startswith("docs/"):
            return f"[{text}]({target.removeprefix('docs/')}{anchor})"
        if target in INSIDE:
            return f"[{text}]({INSIDE[target]}{anchor})"
        return plain(text, target)

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\(((?!https?:)[^)#]+)(#[^)]*)?\)", replaced, source[0])


class Output(Directive):
    """What a command of Python's prints, as it is when the site is built."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"language": str}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        command = [sys.executable, *self.arguments[0].split()]
        environment = {**os.environ, "COLUMNS": "80"}
        root = Path(__file__).parent.parent
        done = subprocess.run(command, cwd=root, env=environment, text=True, stdout=subprocess.PIPE, check=True)
        return [nodes.literal_block(done.stdout, done.stdout, language=self.options.get("language", "text"))]


def setup(app: Any) -> None:
    app.add_directive("output", Output)
    app.connect("source-read", keep_links_inside)
    app.connect("include-read", keep_included_links_inside)
