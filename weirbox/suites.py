"""Read a suite file, and say precisely what is wrong with one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

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
        data = yaml.load(text, Loader=_Loader)
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


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, and reads neither dates nor booleans out of
    texts: ``on``, ``yes`` and ``no`` are words, as in YAML 1.2."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a text", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is given twice", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_PLAIN_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _PLAIN_TEXT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


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
