"""Read a suite file, and say precisely what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from weirbox.domain.plain_yaml import PlainLoader
from weirbox.domain.spec import Suite
from weirbox.errors import SuiteError

SHOWN = 80
"""The most characters of a found value that an error repeats."""

LISTED = 20
"""The most mistakes that an error lists."""

LARGEST = 10 * 2**20
"""The most bytes of a suite file: large data belongs in the dataset."""


_MAY_HOLD_SECRETS = {"headers", "url", "base_url"}
"""Fields that are not repeated: people write into them what should be the name of a secret."""


def load_suite(path: str | Path) -> Suite:
    """Read a suite from a YAML file.

    Raises:
        SuiteError: Naming the file, the path in it, what was found, what is allowed.
    """
    text = _text(Path(path))
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


def _text(file: Path) -> str:
    try:
        if not file.exists():
            raise SuiteError(f"there is no suite file {str(file)!r}; `weirbox init` writes one")
        if file.is_dir():
            raise SuiteError(f"suite {str(file)!r} is a folder: name a file in it")
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise SuiteError(
                f"suite file {str(file)!r} is larger than {LARGEST // 2**20} MiB: put the "
                "records into a dataset file"
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SuiteError(
            f"suite file {str(file)!r} is not UTF-8 text: byte 0x{error.object[error.start]:02x} "
            f"at offset {error.start}"
        ) from None
    except (OSError, ValueError) as error:
        raise SuiteError(f"suite file {str(file)!r} cannot be read: {error}") from error


def parse_suite(data: Any, *, place: str) -> Suite:
    """Validate a suite's data.

    Raises:
        SuiteError: With one line per mistake.
    """
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        found = [item for item in error.errors(include_url=False) if not _follows(item)]
        lines = [f"  {_one(item, data)}" for item in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"  and {len(found) - LISTED} mistakes more")
        raise SuiteError("\n".join([f"suite {place} does not hold together:", *lines])) from None


def with_sinks(suite: Suite, sinks: Iterable[str | dict[str, Any]] | None) -> Suite:
    """A suite whose trials go to these sinks only, and to none of an empty list.

    Args:
        sinks: Names of the suite's sinks, or what a suite would say of others; None for
            those that the suite has.

    Raises:
        SuiteError: When the suite has no sink of a name, or another one does not hold together.
    """
    if sinks is None:
        return suite
    own = {sink.name: sink for sink in suite.sinks}
    chosen: list[Any] = []
    for sink in sinks:
        if isinstance(sink, str) and sink not in own:
            known = ", ".join(own) or "none"
            raise SuiteError(f"suite {suite.suite!r} has no sink {sink!r} (its sinks: {known})")
        chosen.append(own[sink] if isinstance(sink, str) else sink)
    if all(sink in suite.sinks for sink in chosen):
        once = [sink for sink in suite.sinks if sink in chosen]
        return suite.model_copy(update={"sinks": tuple(once)})
    return parse_suite(suite.model_dump() | {"sinks": chosen}, place=repr(suite.suite))


def _yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _follows(item: Any) -> bool:
    """Whether a mistake is another one's consequence: a list is short of its bad items."""
    return item["type"] == "too_short" and bool(item["input"])


def _one(item: Any, data: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    location = _location(item["loc"], data)
    path = _path(location)
    found = _shown(item.get("input"))
    if location and location[-1] in _MAY_HOLD_SECRETS:
        found = "what may hold a secret"
    match kind:
        case "missing":
            return f"{path}: is required, and not there"
        case "extra_forbidden":
            return f"{path}: is not a known field{_near(item['loc'])}"
        case "union_tag_invalid":
            tag = _shown(context["tag"])
            return f"{path}.kind: found {tag}; allowed: {context['expected_tags']}"
        case "union_tag_not_found":
            return f"{path}: needs a 'kind' (found {found})"
        case "tuple_type":
            return f"{path}: should be a list (found {found})"
        case "value_error" | "assertion_error":
            return f"{path}: {context.get('error', item['msg'])} (found {found})"
        case _:
            return f"{path}: {item['msg']} (found {found})"


def _location(location: tuple[int | str, ...], data: Any) -> list[int | str]:
    """Where in the file a mistake is: without the steps that only the models have."""
    found: list[int | str] = []
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if isinstance(data, dict):
            if part == "[key]" or (not last and (data.get("kind") == part or part not in data)):
                continue
            data = data.get(part)
        elif isinstance(data, list | tuple):
            if not isinstance(part, int):
                continue
            data = data[part]
        found.append(part)
    return found


def _path(location: list[int | str]) -> str:
    path = ""
    for part in location:
        name = _shown(part)[1:-1] if isinstance(part, str) else ""
        path += f"[{part}]" if isinstance(part, int) else f".{name}" if path else name
    return path or "the suite"


def _near(location: tuple[int | str, ...]) -> str:
    """What is allowed where an unknown field stands."""
    import difflib

    schema = Suite.model_json_schema()
    inner = schema
    for part in location[:-1]:
        inner = _inside(inner, part, schema["$defs"])
    names = list(inner.get("properties", ()))
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def _inside(schema: Any, part: int | str, known: Any) -> Any:
    """The JSON schema of a part of what a schema describes; empty where it says nothing."""
    if isinstance(part, int):
        found = schema.get("items", {})
    elif part in schema.get("properties", {}):
        found = schema["properties"][part]
    elif part in schema.get("discriminator", {}).get("mapping", {}):
        found = {"$ref": schema["discriminator"]["mapping"][part]}
    else:
        found = schema.get("additionalProperties") or {}
    for choice in found.get("anyOf", ()):
        found = choice if "$ref" in choice else found
    return known[found["$ref"].rpartition("/")[2]] if "$ref" in found else found


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number too long to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
