"""Text that is safe to show, on one line.

Names of functions, files, threads, workers and devices, labels and captions come from files, other processes and the
program itself, so they may contain anything: a terminal obeys escape sequences, a newline forges a line of ours, and
characters that reverse or hide text make a name look like another.

They are made safe here, where they leave as text: the console of the commands and of the text renderers, ``str()`` of
errors, one-line representations, warnings and logs. Not where they enter. There are many more entrances, the live
program among them, and what was read must stay as it was: it is compared, converted, and written as JSON, metrics or a
page, each of which escapes it by rules of its own.
"""

from __future__ import annotations

__all__ = ["plain"]

# Invisible, although Unicode counts them as printable: joiners, fillers, and selectors of variants.
_HIDDEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_NAMED = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def plain(text: object) -> str:
    r"""Return the text as one line that a terminal prints as it is: what cannot be seen is escaped, as in a literal.

    >>> plain("a\x1b]52;c;eA==\x07\nNext: b"), plain("déjà vu 日本")
    ('a\\x1b]52;c;eA==\\x07\\nNext: b', 'déjà vu 日本')
    """
    text = str(text)
    if text.isprintable() and (text.isascii() or _HIDDEN.isdisjoint(text)):
        return text
    return "".join(map(_shown, text))


def _shown(mark: str) -> str:
    if (mark.isprintable() and mark not in _HIDDEN) or mark in _SPACES:
        return mark
    code = ord(mark)
    if mark in _NAMED:
        return _NAMED[mark]
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
