"""Self-contained HTML pages: everything is inside, and their policy forbids all requests and all other scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template
from typing import Any

__all__ = ["file_of", "fill"]


def fill(template: str, scripts: dict[str, str], data: Any, **parts: str) -> str:
    """Fill a template with scripts, the data that they draw, and parts that are already HTML."""
    scripts = {**scripts, "print": file_of(__package__, "print.js")}
    inside = {name: _inside_script(script) for name, script in scripts.items()}
    sources = " ".join(f"'sha256-{_hash(script)}'" for script in inside.values())
    return Template(template).substitute(
        {f"script_{name}": script for name, script in inside.items()},
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {sources}",
        css=file_of(__package__, "page.css"),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        **parts,
    )


def file_of(package: str, name: str) -> str:
    """Read a file from the ``page`` folder of a package."""
    return (files(package) / "page" / name).read_text(encoding="utf-8")


def _inside_script(script: str) -> str:
    """Escape everything in a script that looks like its end. (In a JavaScript string, ``<\\/`` is ``</``.)"""
    return script.replace("</script", "<\\/script")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
