"""Sends an OTLP request from standard input in protobuf; run by Phoenix's Python."""

from __future__ import annotations

import base64
import json
import sys
import urllib.request

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def main() -> None:
    """Send; a refusal is an error."""
    given = json.load(sys.stdin)
    for resource in given["request"]["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in IDS:
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    message = json_format.ParseDict(given["request"], ExportTraceServiceRequest())
    headers = {"content-type": "application/x-protobuf"} | given["headers"]
    request = urllib.request.Request(sys.argv[1], data=message.SerializeToString(), headers=headers)
    urllib.request.urlopen(request, timeout=60).close()


if __name__ == "__main__":
    main()
