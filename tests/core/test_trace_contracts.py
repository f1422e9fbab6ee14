"""The fakes answer, and the sources ask, as the platforms' published descriptions say.

The descriptions are not part of the project. They are ``jaeger-api_v3.openapi.yaml`` and
``langfuse-api.openapi.yml`` in the folder that WEIRBOX_API_DESCRIPTIONS names, or in a folder
``specs`` near the project's.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.core.trace_platforms import PLATFORMS, source_of
from tests.core.trace_sample import CORRELATION, SERVICE, sample
from weirbox.domain.tracing import trace_id_of
from weirbox.domain.words import PullState
from weirbox.testing import FakePlatform
from weirbox.testing.langfuse import PUBLIC_KEY, SECRET_KEY
from weirbox.testing.platform import Request

ROOT = Path(__file__).parents[2]
TRACE = trace_id_of(CORRELATION)


def description(name: str) -> dict[str, Any]:
    """A published description; skips without it."""
    named = os.environ.get("WEIRBOX_API_DESCRIPTIONS")
    folders = [Path(named)] if named else sorted(ROOT.parent.glob("*/specs"))
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        pytest.skip(f"there is no {name}: set WEIRBOX_API_DESCRIPTIONS to its folder")
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.fixture(scope="module")
def jaeger() -> dict[str, Any]:
    """Jaeger's query API v3."""
    return description("jaeger-api_v3.openapi.yaml")


@pytest.fixture(scope="module")
def langfuse() -> dict[str, Any]:
    """Langfuse's public API, that of v3 and of v4."""
    return description("langfuse-api.openapi.yml")


def plain_schema(node: Any) -> Any:
    """OpenAPI 3.0's schemas as JSON Schema: null where it is allowed."""
    if isinstance(node, list):
        return [plain_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: plain_schema(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [{"type": "null"}, plain]} if node.get("nullable") is True else plain


def mistakes(body: Any, schema: dict[str, Any], api: dict[str, Any]) -> list[str]:
    """What of a body the description does not allow."""
    whole = plain_schema(schema) | {"components": plain_schema(api["components"])}
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in Draft202012Validator(whole).iter_errors(body)
    ]


def operation(api: dict[str, Any], request: Request) -> tuple[str, dict[str, Any]]:
    """The path and the operation that a request is for."""
    for path, methods in api["paths"].items():
        pattern = re.sub(r"\\\{[^/]*\\\}", "[^/]+", re.escape(path))
        if re.fullmatch(pattern, request.path) and request.method.lower() in methods:
            return path, methods[request.method.lower()]
    raise AssertionError(f"there is no {request.method} {request.path}")


def schema_of(found: dict[str, Any]) -> dict[str, Any]:
    """What an operation answers."""
    schema: dict[str, Any] = found["responses"]["200"]["content"]["application/json"]["schema"]
    return schema


def described(api: dict[str, Any], requests: list[Request], gaps: set[str]) -> Iterator[str]:
    """The parameters that requests have and the description does not."""
    for request in requests:
        _, found = operation(api, request)
        names = {parameter["name"] for parameter in found.get("parameters", ())} | gaps
        yield from (name for name, _ in request.query if name not in names)


async def pulled_requests(platform: FakePlatform, name: str) -> list[Request]:
    """What a source asks, by id and by tag, and when it is probed."""
    for correlate in ("id", "tag"):
        source = source_of(PLATFORMS[name], platform.url, correlate=correlate)
        assert (await source.pull(CORRELATION, TRACE)).state is PullState.COMPLETE
        await source.probe()
        await source.aclose()
    return platform.requests


JAEGER_GAPS = {"query.attributes"}
"""What the generated description leaves out of the query's parameters."""


async def test_jaeger_is_asked_as_its_description_says(jaeger: dict[str, Any]) -> None:
    with PLATFORMS["jaeger v3"].make() as platform:
        platform.add(*sample())
        requests = await pulled_requests(platform, "jaeger v3")

    assert requests
    assert list(described(jaeger, requests, JAEGER_GAPS)) == []


@pytest.mark.parametrize("path", [f"/api/v3/traces/{TRACE}", "/api/v3/traces"])
def test_the_fake_of_jaeger_answers_as_its_description_says(
    jaeger: dict[str, Any], path: str
) -> None:
    query = {
        "query.serviceName": SERVICE,
        "query.startTimeMin": "2020-01-01T00:00:00.000000000Z",
        "query.startTimeMax": "2099-01-01T00:00:00.000000000Z",
    }
    with PLATFORMS["jaeger v3"].make() as platform:
        platform.add(*sample())
        body = httpx.get(platform.url + path, params=query).json()
        _, found = operation(jaeger, platform.requests[0])

    assert list(body) == ["result"]
    assert mistakes(body["result"], schema_of(found), jaeger) == []


@pytest.mark.parametrize("name", ["langfuse v3", "langfuse v4"])
async def test_langfuse_is_asked_as_its_description_says(
    langfuse: dict[str, Any], name: str
) -> None:
    with PLATFORMS[name].make() as platform:
        platform.add(*sample())
        requests = await pulled_requests(platform, name)

    assert requests
    assert list(described(langfuse, requests, set())) == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("langfuse v4", "/api/public/v2/observations"),
        ("langfuse v3", "/api/public/traces"),
        ("langfuse v3", f"/api/public/traces/{TRACE}"),
    ],
)
def test_the_fake_of_langfuse_answers_as_its_description_says(
    langfuse: dict[str, Any], name: str, path: str
) -> None:
    pair = base64.b64encode(f"{PUBLIC_KEY}:{SECRET_KEY}".encode()).decode()
    groups = "core,basic,time,io,metadata,model,usage,trace_context"
    with PLATFORMS[name].make() as platform:
        platform.add(*sample())
        body = httpx.get(
            platform.url + path,
            params={"fields": groups} if name == "langfuse v4" else {},
            headers={"authorization": f"Basic {pair}"},
        ).json()
        _, found = operation(langfuse, platform.requests[0])

    assert mistakes(body, schema_of(found), langfuse) == []


def test_a_body_that_the_description_does_not_allow_is_found(langfuse: dict[str, Any]) -> None:
    schema = langfuse["paths"]["/api/public/v2/observations"]["get"]
    body = {"data": [{"id": 7}]}

    assert len(mistakes(body, schema_of(schema), langfuse)) >= 2
