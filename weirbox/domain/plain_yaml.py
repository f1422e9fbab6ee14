"""YAML as people mean it: safe, no key twice, words stay words."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["PlainLoader"]


NODES = 1_000_000
"""The most values in one document once its aliases are written out."""


class PlainLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice and aliases that multiply, and reads neither
    dates, booleans nor odd numbers out of texts: ``no``, ``007`` and ``12:30`` are words."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _weigh(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError) as error:
            tag = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{str(node.value)[:40]!r} cannot be read as {tag}", node.start_mark
            ) from error


def _weigh(node: yaml.Node, weights: dict[int, int | None]) -> int:
    """How many values a node is with its aliases written out.

    Raises:
        ConstructorError: When they are too many, or a node is part of itself.
    """
    known = weights.get(id(node), 0)
    if known is None:
        raise yaml.constructor.ConstructorError(
            None, None, "an alias is part of what it stands for", node.start_mark
        )
    if known or isinstance(node, yaml.ScalarNode):
        return known or 1
    weights[id(node)] = None
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    weight = 1 + sum(_weigh(part, weights) for part in parts)
    if weight > NODES:
        raise yaml.constructor.ConstructorError(
            None, None, f"more than {NODES} values, aliases written out", node.start_mark
        )
    weights[id(node)] = weight
    return weight


def _mapping(loader: PlainLoader, node: yaml.MappingNode) -> dict[Any, Any]:
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


PlainLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_REPLACED = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "bool", "int", "float")}
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789")
)
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|-?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-.0123456789"),
)
