"""Text that others wrote, such as class names, for files that other programs interpret."""

import re

_MARKDOWN = re.compile(r"[<>|\[\]`*\\]|&(?=[#\w])")


def one_line(text: str) -> str:
    """Return a text with a space for every line break and control character."""
    return "".join(char if char.isprintable() else " " for char in text)


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is: no HTML, link, emphasis or table cell."""
    return _MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", one_line(text))


def csv_text(text: str) -> str:
    """Return a text that a spreadsheet takes for a text: a formula begins with one of these."""
    text = one_line(text).strip()
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
