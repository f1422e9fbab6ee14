"""Find what a judge's reply says, and where: JSON objects and labelled words."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_THINKING = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_FENCED = re.compile(r"\A(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\s*\1\Z", re.DOTALL)
_OBJECT_START = re.compile(r'\{\s*["}]')
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_QUOTED = re.compile(
    r"""```.*?```|^[ \t]*>[^\n]*|"[^"\n]*"|“[^”\n]*”|‘[^’\n]*’|«[^»\n]*»|`[^`\n]*`"""
    r"""|(?<!\w)'[^'\n]*'(?!\w)""",
    re.DOTALL | re.MULTILINE,
)
_DECORATION = " \t\r\n*_`\"'“”‘’"
_MOST_OBJECTS = 20  # what comes after is not looked at, so that a reply cannot take long to read
_SQUASHED_AWAY = re.compile(r"[\s*_`\\]+")


class Twice:
    """Stands for a key that one JSON object gives two different values."""


TWICE = Twice()


class Object(NamedTuple):
    """A JSON object in a reply; `value` is None when it is broken."""

    start: int
    end: int
    value: dict[str, Any] | None


class Labelled(NamedTuple):
    """A word or number after a label, such as ``verdict: pass``.

    Attributes:
        heads_line: Whether the label begins its line.
        source: The text as it stands in the reply.
    """

    start: int
    word: str
    heads_line: bool
    source: str


def clean(text: str) -> str:
    """The reply without invisible characters, a leading thinking block, and an outer fence."""
    visible = _THINKING.sub("", _INVISIBLE.sub("", text), count=1).strip()
    fenced = _FENCED.match(visible)
    return fenced.group(2).strip() if fenced else visible


def word_key(word: str) -> str:
    """How words are compared: letter case, width, and decoration aside."""
    return unicodedata.normalize("NFKC", word).strip(_DECORATION).rstrip(".!").casefold()


def squash(text: str) -> str:
    """How a passage is looked for in another text: layout and decoration aside."""
    return _SQUASHED_AWAY.sub("", _INVISIBLE.sub("", text)).casefold()


def find_objects(text: str) -> list[Object]:
    """The outermost JSON objects of a text, in order.

    Trailing commas and raw newlines in strings are let pass. What begins like an
    object and is none is reported as broken with all that it encloses, so that
    a part of it is never taken for the whole.
    """
    found: list[Object] = []
    position = 0
    while (match := _OBJECT_START.search(text, position)) is not None:
        if len(found) == _MOST_OBJECTS:
            return [*found, Object(match.start(), len(text), None)]
        one = _decode(text, match.start())
        found.append(one)
        position = one.end
    return found


def find_labelled(text: str, label: str, words: str) -> Iterator[Labelled]:
    """The labelled words of a text, in order, those inside quotations left out.

    Args:
        label: A regular expression of the label.
        words: A regular expression of the words that may follow it.
    """
    pattern = re.compile(
        rf"(?P<head>^[ \t*_#-]*(?:(?:my|the|final|overall)[ \t]+)*)?\b(?P<label>{label})\b"
        rf"(?:[ \t*_]*(?:[:=–—]|-(?!\d))|[ \t*_:]*\n)[\s*_`\"'“‘]*(?P<word>{words})"
        r"[`\"'*_”’ \t]*(?=$|[.;!()\[\]]|[-–—:](?:\s|$))",
        re.IGNORECASE | re.MULTILINE,
    )
    unquoted = _QUOTED.sub(lambda quote: " " * len(quote[0]), text)
    for match in pattern.finditer(text):
        start = match.start("label")
        if unquoted[start] == " ":
            continue
        source = text[start : match.end("word")]
        yield Labelled(start, match["word"], match["head"] is not None, source)


def blank(text: str, spans: list[Object]) -> str:
    """The text with spaces where the objects stand."""
    for span in spans:
        text = text[: span.start] + " " * (span.end - span.start) + text[span.end :]
    return text


def _decode(text: str, start: int) -> Object:
    for mend in (False, True):
        candidate = _without_trailing_commas(text, start) if mend else text
        try:
            value, end = _DECODER.raw_decode(candidate, start)
        except (ValueError, RecursionError):
            continue
        return Object(start, end, value)
    return Object(start, _closing(text, start), None)


def _without_trailing_commas(text: str, start: int) -> str:
    mended = _STRING_OR_COMMA.sub(lambda m: " " if m[0] == "," else m[0], text[start:])
    return text[:start] + mended


def _closing(text: str, start: int) -> int:
    depth = 0
    for match in re.finditer(r"[{}]", text[start:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.end()
    return len(text)


def _keep_twins_apart(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in pairs:
        key = word_key(key)
        same = key not in merged or (type(merged[key]), merged[key]) == (type(value), value)
        merged[key] = value if same else TWICE
    return merged


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_keep_twins_apart)
