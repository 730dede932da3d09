"""Text that clients, servers and files chose, made fit for a terminal, a log line or a table.

A model's name, or a row of a database that someone sends, can hold what a terminal acts on: sequences that move its
cursor, set its title or fake further lines, and marks that turn the direction of writing. Whatever is shown goes
through here; what is stored stays as it came.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line: each character that is no visible one is shown as its escape, such as \\x1b or \\u202e."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
