"""Read a suite file, and say precisely what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from weirbox.domain.plain_yaml import PlainLoader
from weirbox.domain.spec import Suite
from weirbox.errors import SuiteError

SHOWN = 80
"""The most characters of a found value that an error repeats."""


def load_suite(path: str | Path) -> Suite:
    """Read a suite from a YAML file.

    Raises:
        SuiteError: Naming the file, the path in it, what was found, what is allowed.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SuiteError(
            f"there is no suite file {str(path)!r}; `weirbox init` writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"suite file {str(path)!r} cannot be read: {error}") from error
    try:
        data = yaml.load(text, Loader=PlainLoader)
    except yaml.YAMLError as error:
        raise SuiteError(f"suite file {str(path)!r} is not valid YAML: {_yaml(error)}") from None
    except RecursionError:
        raise SuiteError(f"suite file {str(path)!r} is nested too deeply") from None
    if not isinstance(data, dict):
        raise SuiteError(
            f"suite file {str(path)!r} holds {_shown(data)}; a suite is a mapping that begins "
            "with 'suite: NAME'"
        )
    return parse_suite(data, place=str(path))


def parse_suite(data: Any, *, place: str) -> Suite:
    """Validate a suite's data.

    Raises:
        SuiteError: With one line per mistake.
    """
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        lines = [f"  {_one(item)}" for item in error.errors(include_url=False)]
        raise SuiteError("\n".join([f"suite {place} does not hold together:", *lines])) from None


def _yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _one(item: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    path = _path(item["loc"])
    found = _shown(item.get("input"))
    if kind == "missing":
        return f"{path}: is required, and not there"
    if kind == "extra_forbidden":
        return f"{path}: is not a known field{_near(item['loc'])}"
    if kind == "union_tag_invalid":
        return f"{path}.kind: found {context['tag']!r}; allowed: {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return f"{path}: needs a 'kind'"
    if kind in ("value_error", "assertion_error"):
        return f"{path}: {context.get('error', item['msg'])} (found {found})"
    return f"{path}: {item['msg']} (found {found})"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "the suite"


def _near(location: tuple[int | str, ...]) -> str:
    import difflib

    names = list(Suite.model_fields)
    if len(location) > 1:
        return ""
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
