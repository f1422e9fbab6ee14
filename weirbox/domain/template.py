"""Templates that are filled in once: what is put in is never a template itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weirbox.domain.base import canonical_json

_SLOT = re.compile(r"\{\{\s*([A-Za-z_][\w.\-]*)\s*\}\}")


CASE_SLOTS = ("case.id", "case.input", "case.record", "trial")
"""What templates of harnesses and compute may name; the target is not shown to them."""

GRADER_SLOTS = ("case.id", "case.input", "case.target", "case.record", "output")
"""What templates of graders may name."""


class Missing(KeyError):
    """A template names something that is not there."""


def lookup(value: Any, path: str) -> Any:
    """Follow a dot path through mappings and lists.

    Args:
        value: A JSON value.
        path: Such as ``a.b.0``; a mapping's key may itself contain dots.

    Raises:
        Missing: When the path leads nowhere; it carries the whole path.
    """
    try:
        return _follow(value, path)
    except Missing:
        raise Missing(path) from None


def _follow(value: Any, path: str) -> Any:
    if isinstance(value, Mapping) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    if isinstance(value, Mapping) and head in value:
        inner = value[head]
    elif isinstance(value, list | tuple) and head.isdigit() and int(head) < len(value):
        inner = value[int(head)]
    else:
        raise Missing(path)
    return _follow(inner, rest) if rest else inner


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace every ``{{ path }}`` by its value, in one pass.

    Texts stand as they are, other values as JSON. What is inserted is not looked
    at again, so data that contains braces stays data.

    Raises:
        Missing: When a path leads nowhere.
    """

    def one(match: re.Match[str]) -> str:
        found = lookup(values, match.group(1))
        if isinstance(found, str):
            return found
        return "" if found is None else canonical_json(found)

    return _SLOT.sub(one, template)


def refuse_unknown_slots(template: Any, known: tuple[str, ...], *, where: str) -> None:
    """Refuse a template that names what no case can have.

    Args:
        template: A text, or JSON whose texts are templates.
        known: The paths that may be named, and what is below them.

    Raises:
        ValueError: Naming the place, what was found, and what is known.
    """
    if isinstance(template, Mapping):
        template = list(template.values())
    if isinstance(template, list | tuple):
        for part in template:
            refuse_unknown_slots(part, known, where=where)
    elif isinstance(template, str):
        for slot in _SLOT.findall(template):
            if not any(f"{slot}.".startswith(f"{path}.") for path in known):
                raise ValueError(f"{where} names '{{{{ {slot} }}}}'; known: {', '.join(known)}")


def fill_json(template: Any, values: Mapping[str, Any]) -> Any:
    """`fill` in every text of a JSON value; a text that is one slot keeps its value's type."""
    if isinstance(template, str):
        whole = _SLOT.fullmatch(template.strip())
        return lookup(values, whole.group(1)) if whole else fill(template, values)
    if isinstance(template, dict):
        return {key: fill_json(item, values) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill_json(item, values) for item in template]
    return template
