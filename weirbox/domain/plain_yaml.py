"""YAML as people mean it: safe, no key twice, words stay words."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["PlainLoader"]


class PlainLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, and reads neither dates nor booleans out of
    texts: ``on``, ``yes`` and ``no`` are words, as in YAML 1.2."""


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
_PLAIN_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _PLAIN_TEXT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
