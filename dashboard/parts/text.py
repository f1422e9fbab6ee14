"""Untrusted text, shown as text: nothing in it becomes a link, an image, a tag or a direction."""

from __future__ import annotations

import json
import re
from typing import Literal

import streamlit as st
from pydantic import JsonValue

Color = Literal["red", "orange", "yellow", "blue", "green", "violet", "gray"]

CHARACTERS_SHOWN = 20_000
"""Characters of one text that a page shows; the rest can be downloaded."""

TALL, TALL_LINES, TALL_CHARACTERS = 420, 18, 1500
"""Pixels of a box that scrolls, and from how much text on it does."""

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and marks that change the direction of what stands around them."""


def visible(text: str) -> str:
    """Text with everything escaped that a reader would not see, or a browser refuses."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _INVISIBLE.sub(_escape, whole)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def one_line(text: str, *, length: int | None = None, limit: int = 200) -> str:
    """Text for a cell of a table.

    Args:
        length: The length of the whole text where `text` is only its beginning.
    """
    whole = len(text) if length is None else length
    shown = visible(text[:limit]).replace("\n", " ⏎ ").replace("\t", " ")
    return shown if whole <= limit else f"{shown}… ({whole:,} characters)"


def as_text(value: JsonValue) -> str:
    """A JSON value for people: text as it is, anything else indented."""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)


def block(value: JsonValue, *, key: str, absent: str = "none") -> None:
    """Show a value in a box; what is too long is cut, says so, and can be downloaded.

    Args:
        key: Unique on the page.
        absent: What is said of None.
    """
    if value is None:
        st.caption(absent)
        return
    if value == "":
        st.caption("empty text")
        return
    text = as_text(value)
    language = None if isinstance(value, str) else "json"
    tall = len(text) > TALL_CHARACTERS or text.count("\n") > TALL_LINES
    st.code(
        visible(text[:CHARACTERS_SHOWN]),
        language=language,
        wrap_lines=True,
        height=TALL if tall else "content",
    )
    if len(text) > CHARACTERS_SHOWN:
        st.caption(f"Cut: the first {CHARACTERS_SHOWN:,} of {len(text):,} characters.")
        st.download_button(
            "Download all of it",
            text.encode("utf-8", "backslashreplace"),
            file_name=f"{key}.txt",
            mime="text/plain",
            key=f"download-{key}",
        )


def notice(title: str, text: str, *, color: Color = "violet") -> None:
    """A box with a title of ours and a text that may be anyone's."""
    with st.container(border=True):
        st.badge(title, color=color)
        st.text(visible(text))
