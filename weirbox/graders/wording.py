"""Texts with the differences taken off that do not change an answer."""

from __future__ import annotations

import unicodedata

import regex

_ARTICLES = frozenset({"a", "an", "the"})
_MINUS = str.maketrans({"−": "-", "﹣": "-", "－": "-"})
_INVISIBLE = regex.compile(r"\p{Cf}+")
_THOUSANDS = regex.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_APOSTROPHES = regex.compile(r"['’‘ʼ`]")
_ACRONYM = regex.compile(r"\b(?:\p{L}\.)+\p{L}\b\.?")
_NUMBER = r"(?<![\p{L}\p{N}.])[-+]?(?:\d+(?:\.\d+)*|\.\d+)"
_WORD = r"[\p{L}\p{N}\p{M}]+"
_NUMBER_OR_WORD = regex.compile(f"{_NUMBER}|{_WORD}")
_PLAIN_NUMBER = regex.compile(rf"{_NUMBER}(?:e[-+]?\d+)?")
_PLAIN_WORD = regex.compile(_WORD)


def normalise(text: str) -> str:
    """Take case, white space, punctuation and articles off a text.

    After the answer normalisation of SQuAD (Rajpurkar et al. 2016), with Unicode
    compatibility forms (NFKC) unified, and with three of its false matches mended:
    numbers keep their sign and point (-5 is not 5, 3.14 is not 314), an article
    counts as one only before another word (so the choice "A" stays), and a text of
    nothing but punctuation stays as it is.
    """
    folded = _fold(text)
    plain = _ACRONYM.sub(lambda match: match.group().replace(".", ""), folded)
    plain = _APOSTROPHES.sub("", _THOUSANDS.sub("", plain))
    words = [word.removeprefix("+") for word in _NUMBER_OR_WORD.findall(plain)]
    if not words:
        return " ".join(folded.split())
    kept = [word for word in words[:-1] if word not in _ARTICLES]
    return " ".join([*kept, words[-1]])


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; articles are words like others."""
    return list(_PLAIN_WORD.findall(_fold(text)))


def numbers_in(text: str) -> list[float]:
    """The numbers that stand in a text, thousands separators aside."""
    plain = _THOUSANDS.sub("", _fold(text))
    found = (match.group() for match in _PLAIN_NUMBER.finditer(plain))
    return [float(number) for number in found if number.count(".") <= 1]


def _fold(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).translate(_MINUS).casefold()
    return str(_INVISIBLE.sub("", unicodedata.normalize("NFKC", folded)))
