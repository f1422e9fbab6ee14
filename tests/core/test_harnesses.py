"""Harnesses: what they give back, and what they make of everything that goes wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import JsonValue, TypeAdapter, ValidationError

from weirbox import compute, harnesses
from weirbox.domain.case import Case
from weirbox.domain.seams import Compute, Harness, TrialContext, Workshop
from weirbox.domain.spec import ComputeSpec, HarnessSpec, RecordedHarness
from weirbox.domain.trace import Observation, TraceEvent
from weirbox.domain.tracing import traceparent_of
from weirbox.domain.words import ErrorKind, EventKind
from weirbox.errors import HarnessError, SuiteError
from weirbox.harnesses import command
from weirbox.harnesses.events import read_events
from weirbox.secrets import reader

SPEC: TypeAdapter[HarnessSpec] = TypeAdapter(HarnessSpec)
CASE = Case(
    id="c1",
    input="2 + 2",
    target="4",
    record={"prompt": "def f():", "solution": " return {{ case.id }}", "n": {"a": [10, 20]}},
    place="cases.jsonl:1",
)
CONTEXT = TrialContext(trial=2, correlation="run-7/c1/2", env={"WEIRBOX_RUN_ID": "run-7/c1/2"})
SECRETS = {"TOKEN": "sk-very-secret"}


def build(
    folder: Path = Path("/nowhere"), compute_spec: ComputeSpec | None = None, **spec: Any
) -> Harness:
    workshop = Workshop(
        folder=str(folder),
        read_file=lambda path: Path(path).read_bytes(),
        read_secret=reader(SECRETS.get),
    )
    parsed = SPEC.validate_python(spec)
    return harnesses.build(parsed, workshop, compute_spec=compute_spec or ComputeSpec())


class TestCommand:
    @pytest.fixture
    async def machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Compute]:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        built = compute.build("local")
        yield built
        await built.aclose()

    @pytest.fixture
    def drive(self, machine: Compute) -> Any:
        async def run(
            script: str | list[str],
            case: Case = CASE,
            compute_spec: ComputeSpec | None = None,
            **spec: Any,
        ) -> Observation:
            limits = compute_spec or ComputeSpec()
            argv = ["sh", "-c", script] if isinstance(script, str) else script
            harness = build(compute_spec=limits, kind="command", argv=argv, **spec)
            handle = await machine.provision(limits, correlation=CONTEXT.correlation)
            return await harness.run(case, handle=handle, context=CONTEXT)

        return run

    async def test_standard_output_is_the_answer(self, drive: Any) -> None:
        found = await drive("echo; echo '  4 '; echo warn >&2")
        assert (found.output, found.error, found.correlation) == ("4", None, "run-7/c1/2")
        assert found.snapshot.stdout == "\n  4 \n"
        assert (found.snapshot.stderr, found.snapshot.exit_code) == ("warn\n", 0)
        assert found.duration > 0
        assert (await drive("echo ' 4 '", strip=False)).output == " 4 \n"

    async def test_templates_are_filled_once_and_never_run_as_code(self, drive: Any) -> None:
        case = CASE.model_copy(update={"input": "{{ case.record }} $(id) `id`"})
        argv = ["printf", "%s|", "{{ case.id }}", "{{ case.input }}", "{{ case.record.n.a.1 }}"]
        found = await drive([*argv, "{{ trial }}"], case)
        assert found.output == "c1|{{ case.record }} $(id) `id`|20|2|"
        found = await drive(["cat"], stdin="{{ case.record.solution }}", strip=False)
        assert found.output == " return {{ case.id }}"

    async def test_the_target_is_not_shown_to_the_system_under_test(self, drive: Any) -> None:
        with pytest.raises(
            ValidationError, match=r"names '\{\{ case\.target \}\}'; known: case\.id"
        ):
            await drive(["echo", "{{ case.target }}"])

    async def test_a_field_that_the_case_does_not_have_is_named(self, drive: Any) -> None:
        with pytest.raises(HarnessError, match=r"argv names 'case\.record\.nope'.*'c1'"):
            await drive(["echo", "{{ case.record.nope }}"])

    async def test_variables_and_secrets_of_the_compute_are_there(self, drive: Any) -> None:
        spec = ComputeSpec(env={"PLAIN": "p"}, secrets={"API_KEY": "TOKEN"})
        script = 'echo "$PLAIN $WEIRBOX_RUN_ID ${#API_KEY}"'
        assert (await drive(script, compute_spec=spec)).output == "p run-7/c1/2 14"

    async def test_a_secret_that_is_echoed_is_not_kept(self, drive: Any) -> None:
        spec = ComputeSpec(secrets={"API_KEY": "TOKEN"})
        script = 'echo $API_KEY | tee f >&2; echo "key=$API_KEY"; exit 1'
        found = await drive(script, compute_spec=spec, keep=["f"])
        assert found.output == "key=[secret]"
        assert SECRETS["TOKEN"] not in found.model_dump_json()

    async def test_a_missing_secret_is_named(self, drive: Any) -> None:
        with pytest.raises(HarnessError, match="'NOT_SET'") as caught:
            await drive("true", compute_spec=ComputeSpec(secrets={"K": "NOT_SET"}))
        assert caught.value.kind is ErrorKind.MISSING_SECRET

    async def test_a_status_other_than_zero_is_an_error_that_can_be_graded(
        self, drive: Any
    ) -> None:
        found = await drive("echo 4; echo no such luck >&2; exit 3")
        assert found.error.kind is ErrorKind.HARNESS_EXIT
        assert found.error.message == "'sh' ended with exit status 3"
        assert (found.error.detail, found.output) == ("no such luck\n", "4")

    async def test_a_time_out_keeps_what_was_left_behind(self, drive: Any) -> None:
        script = "echo part; echo x > kept; sleep 60"
        found = await drive(script, timeout_s=0.3, keep=["kept"])
        assert found.error.kind is ErrorKind.HARNESS_TIMEOUT
        assert (found.output, found.snapshot.exit_code) == ("part", None)
        assert found.snapshot.timed_out is True
        assert [(file.path, file.text) for file in found.snapshot.files] == [("kept", "x\n")]

    async def test_the_computes_time_limit_holds_where_the_harness_has_none(
        self, drive: Any
    ) -> None:
        found = await drive("sleep 60", compute_spec=ComputeSpec(timeout_s=0.2))
        assert found.error.kind is ErrorKind.HARNESS_TIMEOUT

    async def test_a_missing_program_is_named(self, drive: Any) -> None:
        with pytest.raises(HarnessError, match="no program 'no-such-agent'") as caught:
            await drive(["no-such-agent", "--flag"])
        assert caught.value.kind is ErrorKind.MISSING_EXECUTABLE

    async def test_a_program_that_misses_another_has_ended_with_127(self, drive: Any) -> None:
        found = await drive("no-such-tool")
        assert (found.error.kind, found.snapshot.exit_code) == (ErrorKind.HARNESS_EXIT, 127)

    @pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "lone surrogate"])
    async def test_what_no_argument_can_hold_is_refused(self, drive: Any, text: str) -> None:
        case = CASE.model_copy(update={"input": text})
        with pytest.raises(HarnessError, match="use 'stdin' instead"):
            await drive(["echo", "{{ case.input }}"], case)
        found = await drive(["cat"], case, stdin="{{ case.input }}")
        assert found.output == ("a\\x00b" if "\0" in text else "\\xed\\xa0\\x80")

    async def test_an_argument_that_is_too_long_is_refused(self, drive: Any) -> None:
        case = CASE.model_copy(update={"input": "x" * 3_000_000})
        with pytest.raises(HarnessError, match=r"too long.*use 'stdin' instead"):
            await drive(["echo", "{{ case.input }}"], case)
        assert (await drive(["wc", "-c"], case, stdin="{{ case.input }}")).output == "3000000"

    async def test_the_answer_may_be_a_file(self, drive: Any) -> None:
        found = await drive("mkdir out; echo 4 > out/a.txt; echo log", output="out/a.txt")
        assert (found.output, found.snapshot.stdout, found.error) == ("4", "log\n", None)

    @pytest.mark.parametrize(
        ("script", "path", "message"),
        [
            ("true", "a.txt", "its output file 'a.txt' cannot be read: No such file or directory"),
            ("mkdir a", "a", "its output file 'a' cannot be read: Is a directory"),
            (
                "ln -s /etc/passwd a",
                "a",
                "its output file 'a' cannot be read: not a path inside the work folder",
            ),
            (
                "exit 2",
                "a",
                "'sh' ended with exit status 2; "
                "its output file 'a' cannot be read: No such file or directory",
            ),
        ],
        ids=["missing", "folder", "link out", "failed too"],
    )
    async def test_an_output_file_that_cannot_be_read_is_no_answer(
        self, drive: Any, script: str, path: str, message: str
    ) -> None:
        found = await drive(script, output=path)
        assert (found.output, found.error.kind) == (None, ErrorKind.HARNESS_EXIT)
        assert found.error.message == message

    async def test_bytes_that_are_no_text_are_escaped(self, drive: Any) -> None:
        found = await drive(r"printf 'a\377\000b\303\251'")
        assert found.output == "a\\xff\\x00bé"

    async def test_of_a_long_output_the_tail_is_kept_and_flagged(self, drive: Any) -> None:
        spec = ComputeSpec(output_limit_bytes=10)
        found = await drive("seq 100000", compute_spec=spec)
        assert (found.output, found.snapshot.truncated) == ("99\n100000", True)

    async def test_files_are_kept_within_bounds(
        self, drive: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(command, "KEEP_FILES", 2)
        monkeypatch.setattr(command, "KEEP_FILE_BYTES", 3)
        script = "mkdir d; for i in 1 2 3; do echo $i-long > d/$i.txt; done; echo x > no"
        found = await drive(script, keep=["d/*.txt", "d/1*"])
        files = [(file.path, file.text, file.truncated) for file in found.snapshot.files]
        assert files == [("d/1.txt", "1-l", True), ("d/2.txt", "2-l", True)]
        assert found.snapshot.truncated is True
        found = await drive(script, keep=["no", "*.none"])
        assert [file.text for file in found.snapshot.files] == ["x\n"]
        assert found.snapshot.truncated is False

    async def test_events_become_the_trace_with_usage_and_model(self, drive: Any) -> None:
        lines = [
            {"kind": "llm_call", "model": "m1", "usage": {"input_tokens": 5, "cost_usd": 0.5}},
            {"kind": "tool_call", "name": "search", "data": {"q": "x"}, "parent": 0},
            {"kind": "llm_call", "model": "m2", "usage": {"input_tokens": 7, "output_tokens": 1}},
        ]
        stdin = "\n".join(map(json.dumps, lines))
        found = await drive("cat > e.jsonl", stdin=stdin, events="e.jsonl")
        assert [event.kind for event in found.trace] == ["llm_call", "tool_call", "llm_call"]
        assert found.trace[1].data == {"q": "x"}
        assert (found.usage.input_tokens, found.usage.output_tokens) == (12, 1)
        assert (found.usage.cost_usd, found.usage.cached_tokens) == (0.5, None)
        assert found.model == "m2"

    async def test_missing_events_are_an_error_event(self, drive: Any) -> None:
        found = await drive("echo 4", events="e.jsonl")
        assert (found.output, found.error) == ("4", None)
        assert [(event.kind, event.text) for event in found.trace] == [
            (EventKind.ERROR, "'e.jsonl' cannot be read: No such file or directory")
        ]

    async def test_nothing_that_the_program_left_running_outlives_it(self, drive: Any) -> None:
        found = await drive("setsid sleep 86401 >/dev/null 2>&1 & echo 4")
        assert found.output == "4"
        lines = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
        assert ["sleep", "86401"] not in lines

    async def test_compute_is_required(self) -> None:
        harness = build(kind="command", argv=["true"])
        assert harness.needs_compute is True
        with pytest.raises(HarnessError, match="needs compute"):
            await harness.run(CASE, handle=None, context=CONTEXT)


def test_malformed_events_stand_in_their_place_and_name_their_line() -> None:
    text = '{"kind": "log", "text": "a"}\n\nnot json\n{"kind": "dance"}\n[1]\n{"kind": "log"}\n'
    events = read_events(text, "e.jsonl")
    kinds = [EventKind.LOG, EventKind.ERROR, EventKind.ERROR, EventKind.ERROR, EventKind.LOG]
    assert [event.kind for event in events] == kinds
    assert events[1].text.startswith("e.jsonl, line 3: Expecting value")
    assert events[2].text.startswith("e.jsonl, line 4: kind: Input should be 'message'")
    assert events[3].text.startswith("e.jsonl, line 5: Input should be")
    assert events[1].data == "not json"


class Service(BaseHTTPRequestHandler):
    """Answers by path, and remembers what it was asked."""

    seen: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self.seen.append({"path": self.path, "headers": dict(self.headers.items()), "body": body})
        head, _, rest = self.path[1:].partition("?")[0].partition("/")
        if head == "status":
            self.reply(int(rest), "text/plain", b"why: " + b"x" * 1000)
        elif head == "slow":
            threading.Event().wait(1)
            self.reply(200, "text/plain", b"late")
        elif head == "json":
            self.reply(200, "application/json", b'{"a": {"b": [1, {"c": "four"}]}}')
        elif head == "echo":
            self.reply(200, "text/plain", str(self.headers.get("authorization")).encode())
        else:
            self.reply(200, "text/plain; charset=latin-1", b"caf\xe9\0")

    do_GET = do_POST

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


class TestHttp:
    @pytest.fixture
    def url(self) -> Iterator[str]:
        Service.seen.clear()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    async def ask(self, url: str, case: Case = CASE, **spec: Any) -> Observation:
        harness = build(kind="http", url=url, **spec)
        assert harness.needs_compute is False
        try:
            return await harness.run(case, handle=None, context=CONTEXT)
        finally:
            await harness.aclose()

    async def test_the_input_is_posted_and_the_whole_reply_is_the_answer(self, url: str) -> None:
        found = await self.ask(f"{url}/text")
        assert (found.output, found.correlation) == ("café\\x00", "run-7/c1/2")
        assert json.loads(Service.seen[0]["body"]) == {"input": "2 + 2"}
        assert [(event.name, event.data) for event in found.trace] == [
            ("request", {"request": f"POST {url}/text"}),
            ("reply", {"status": 200}),
        ]
        assert found.trace[1].text == "café\\x00"

    async def test_the_trial_is_named_in_headers(self, url: str) -> None:
        await self.ask(f"{url}/text")
        headers = {key.lower(): value for key, value in Service.seen[0]["headers"].items()}
        assert headers["x-weirbox-run-id"] == "run-7/c1/2"
        assert headers["traceparent"] == traceparent_of("run-7/c1/2")
        version, trace, span, flags = headers["traceparent"].split("-")
        assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
        assert traceparent_of("other") != traceparent_of("run-7/c1/2")

    @pytest.mark.parametrize(
        ("path", "answer"),
        [
            (None, {"a": {"b": [1, {"c": "four"}]}}),
            ("a.b.1.c", "four"),
            ("a.b.0", 1),
            ("a", {"b": [1, {"c": "four"}]}),
        ],
        ids=["whole", "text", "number", "part"],
    )
    async def test_the_answer_is_found_by_its_path(
        self, url: str, path: str | None, answer: JsonValue
    ) -> None:
        assert (await self.ask(f"{url}/json", output=path)).output == answer

    async def test_a_reply_without_the_answer_is_an_error(self, url: str) -> None:
        with pytest.raises(HarnessError, match=r"replied without 'a\.x'") as caught:
            await self.ask(f"{url}/json", output="a.x")
        assert caught.value.kind is ErrorKind.HARNESS_ERROR
        with pytest.raises(HarnessError, match="what is not JSON"):
            await self.ask(f"{url}/text", output="a")

    async def test_the_body_is_a_template_that_keeps_types(self, url: str) -> None:
        body = {
            "messages": [{"content": "Q: {{ case.input }}"}],
            "n": "{{ case.record.n }}",
            "t": 0,
        }
        await self.ask(f"{url}/text", body=body)
        assert json.loads(Service.seen[0]["body"]) == {
            "messages": [{"content": "Q: 2 + 2"}],
            "n": {"a": [10, 20]},
            "t": 0,
        }

    async def test_a_get_has_no_body(self, url: str) -> None:
        await self.ask(f"{url}/text", method="GET")
        assert Service.seen[0]["body"] == ""

    async def test_what_a_case_says_cannot_change_the_url(self, url: str) -> None:
        case = CASE.model_copy(update={"input": "../a?b=c#d"})
        await self.ask(f"{url}/text/{{{{ case.input }}}}?q={{{{ case.input }}}}", case)
        assert Service.seen[0]["path"] == "/text/..%2Fa%3Fb%3Dc%23d?q=..%2Fa%3Fb%3Dc%23d"

    async def test_a_case_may_give_the_whole_url(self, url: str) -> None:
        case = CASE.model_copy(update={"input": f"{url}/text?x=1"})
        await self.ask("{{ case.input }}", case)
        assert Service.seen[0]["path"] == "/text?x=1"

    async def test_a_secret_is_sent_and_kept_nowhere(self, url: str) -> None:
        found = await self.ask(f"{url}/echo", headers={"Authorization": "Bearer secret:TOKEN"})
        headers = {key.lower(): value for key, value in Service.seen[0]["headers"].items()}
        assert headers["authorization"] == "Bearer sk-very-secret"
        assert found.output == "Bearer [secret]"
        assert "sk-very-secret" not in found.model_dump_json()

    async def test_a_missing_secret_is_named(self, url: str) -> None:
        with pytest.raises(HarnessError, match="'NOT_SET'") as caught:
            await self.ask(f"{url}/text", headers={"x-key": "secret:NOT_SET"})
        assert (caught.value.kind, Service.seen) == (ErrorKind.MISSING_SECRET, [])

    async def test_a_secret_that_no_header_can_hold_is_not_shown(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for value in ("sk-bad\nvalue", "sk-bäd"):
            monkeypatch.setitem(SECRETS, "BAD", value)
            with pytest.raises(HarnessError, match="a header is malformed") as caught:
                await self.ask(f"{url}/text", headers={"x-key": "secret:BAD"})
            assert "sk-b" not in str(caught.value) + caught.value.detail

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (429, ErrorKind.HARNESS_TRANSIENT),
            (500, ErrorKind.HARNESS_TRANSIENT),
            (503, ErrorKind.HARNESS_TRANSIENT),
            (301, ErrorKind.HARNESS_ERROR),
            (400, ErrorKind.HARNESS_ERROR),
            (404, ErrorKind.HARNESS_ERROR),
        ],
    )
    async def test_a_refusal_has_its_kind_and_the_reply_without_the_query(
        self, url: str, status: int, kind: ErrorKind
    ) -> None:
        address = url.replace("//", "//user:pw@")
        with pytest.raises(HarnessError) as caught:
            await self.ask(f"{address}/status/{status}?key=hidden")
        said = "why: " + "x" * 495
        assert caught.value.kind is kind
        assert (
            str(caught.value) == f"POST {url}/status/{status} replied with status {status}: {said}"
        )

    async def test_a_service_that_is_not_there_is_transient(self) -> None:
        with pytest.raises(HarnessError, match=r"http://127\.0\.0\.1:1/x could not be") as caught:
            await self.ask("http://127.0.0.1:1/x")
        assert caught.value.kind is ErrorKind.HARNESS_TRANSIENT

    async def test_a_url_of_no_kind_is_an_error(self) -> None:
        with pytest.raises(HarnessError, match="the URL or a header is malformed") as caught:
            await self.ask("gopher://127.0.0.1/x")
        assert caught.value.kind is ErrorKind.HARNESS_ERROR

    async def test_a_time_out_is_an_observation(self, url: str) -> None:
        found = await self.ask(f"{url}/slow?key=hidden", timeout_s=0.1)
        assert found.error is not None
        assert found.error.kind is ErrorKind.HARNESS_TIMEOUT
        assert found.error.message == f"POST {url}/slow did not reply within 0.1 s"
        assert [event.name for event in found.trace] == ["request"]


FUNCTIONS = """
import asyncio, time
from weirbox.domain.seams import TrialContext
from weirbox.domain.trace import Observation, Usage

def plain(case): return {"id": case.id, "n": [1, None, 2.5]}
async def awaited(case, context): return f"{case.input} {context.trial} {context.correlation}"
def defaulted(case, context=None): return context.trial
def keyword(case, *, mode="m"): return mode
def observed(case): return Observation(output="o", usage=Usage(input_tokens=3), correlation="x")
def returns_awaitable(case): return awaited(case, TrialContext(1, "c"))
def raises(case): raise KeyError("gone")
async def raises_late(case): await asyncio.sleep(0); raise TimeoutError("mine")
def leaves(case): raise SystemExit(3)
async def leaves_async(case): raise SystemExit(3)
async def cancels(case): raise asyncio.CancelledError
def odd(case): return {"x": [1, {2}]}
def slow(case): time.sleep(1)
async def slow_async(case): await asyncio.sleep(60)
async def stubborn(case):
    try: await asyncio.sleep(60)
    except asyncio.CancelledError: await asyncio.sleep(0.2)
class Agent:
    async def __call__(self, case): return "called"
agent = Agent()
"""


class TestPython:
    async def call(self, folder: Path, name: str, **spec: Any) -> Observation:
        (folder / "f.py").write_text(FUNCTIONS)
        harness = build(folder, kind="python", function=f"f.py:{name}", **spec)
        assert harness.needs_compute is False
        return await harness.run(CASE, handle=None, context=CONTEXT)

    @pytest.mark.parametrize(
        ("name", "output"),
        [
            ("plain", {"id": "c1", "n": [1, None, 2.5]}),
            ("awaited", "2 + 2 2 run-7/c1/2"),
            ("defaulted", 2),
            ("keyword", "m"),
            ("returns_awaitable", "2 + 2 1 c"),
            ("agent", "called"),
        ],
    )
    async def test_the_answer_is_what_the_function_returns(
        self, tmp_path: Path, name: str, output: JsonValue
    ) -> None:
        found = await self.call(tmp_path, name)
        assert (found.output, found.correlation) == (output, "run-7/c1/2")

    async def test_an_observation_is_kept_but_for_the_trials_own(self, tmp_path: Path) -> None:
        found = await self.call(tmp_path, "observed")
        assert (found.output, found.usage.input_tokens) == ("o", 3)
        assert (found.correlation, found.duration > 0) == ("run-7/c1/2", True)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("raises", "KeyError: 'gone'"),
            ("raises_late", "TimeoutError: mine"),
            ("leaves", "SystemExit: 3"),
            ("leaves_async", "SystemExit: 3"),
            ("cancels", "RuntimeError: the function was cancelled from inside"),
        ],
    )
    async def test_whatever_is_raised_becomes_an_error_with_its_stack(
        self, tmp_path: Path, name: str, message: str
    ) -> None:
        with pytest.raises(HarnessError) as caught:
            await self.call(tmp_path, name)
        assert (str(caught.value), caught.value.kind) == (message, ErrorKind.HARNESS_ERROR)
        assert message.partition(":")[0] in caught.value.detail
        if name.startswith(("raises", "leaves")):
            assert f"in {name}" in caught.value.detail

    async def test_what_is_not_json_is_refused_with_its_place(self, tmp_path: Path) -> None:
        with pytest.raises(HarnessError, match="returned 'dict', which is not JSON at"):
            await self.call(tmp_path, "odd")

    @pytest.mark.parametrize("name", ["slow", "slow_async", "stubborn"])
    async def test_a_time_out_is_an_observation(self, tmp_path: Path, name: str) -> None:
        found = await self.call(tmp_path, name, timeout_s=0.05)
        assert found.error is not None
        assert found.error.kind is ErrorKind.HARNESS_TIMEOUT
        assert found.error.message == f"function 'f.py:{name}' did not return within 0.05 s"
        assert found.duration < 1

    async def test_cancelling_the_trial_cancels_the_function(self, tmp_path: Path) -> None:
        task = asyncio.create_task(self.call(tmp_path, "slow_async"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_function_that_is_not_there_is_a_mistake_of_the_suite(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(SuiteError, match="no function 'nothing'"):
            await self.call(tmp_path, "nothing")


RECORDING = """\
{"id": "c1", "output": "first", "trial": 1}
{"id": "c1", "output": {"any": 1}, "model": "m", "usage": {"cost_usd": 0.25}}

{"id": 7, "output": null, "trace": [{"kind": "log", "text": "seen"}]}
"""


class TestRecorded:
    async def ask(
        self, folder: Path = Path("/nowhere"), case: Case = CASE, trial: int = 1, **spec: Any
    ) -> Observation:
        harness = build(folder, kind="recorded", **spec)
        context = TrialContext(trial=trial, correlation="cor")
        return await harness.run(case, handle=None, context=context)

    async def test_an_answer_stands_in_the_record(self) -> None:
        found = await self.ask(field="n.a.1")
        assert (found.output, found.correlation) == (20, "cor")

    async def test_a_template_is_filled_over_the_case(self) -> None:
        template = "{{ case.record.prompt }}{{ case.record.solution }} # {{ case.target }}"
        assert (await self.ask(template=template)).output == "def f(): return {{ case.id }} # 4"

    async def test_an_answer_stands_in_a_file_by_id_and_trial(self, tmp_path: Path) -> None:
        (tmp_path / "r.jsonl").write_text(RECORDING)
        assert (await self.ask(tmp_path, path="r.jsonl", trial=1)).output == "first"
        found = await self.ask(tmp_path, path="r.jsonl", trial=2)
        assert (found.output, found.model, found.usage.cost_usd) == ({"any": 1}, "m", 0.25)
        found = await self.ask(tmp_path, Case(id="7"), path="r.jsonl")
        assert (found.output, found.trace) == (None, (TraceEvent(kind="log", text="seen"),))

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"field": "n.x"}, "its record has no 'n.x'"),
            ({"template": "{{ case.nope }}"}, "it has no 'case.nope'"),
            ({"path": "r.jsonl"}, "'r.jsonl' has no line for it (trial 1)"),
        ],
        ids=["field", "template", "path"],
    )
    async def test_a_missing_answer_names_the_case_and_the_place(
        self, tmp_path: Path, spec: dict[str, str], message: str
    ) -> None:
        (tmp_path / "r.jsonl").write_text('{"id": "other", "output": 1}')
        with pytest.raises(HarnessError) as caught:
            await self.ask(tmp_path, **spec)
        assert caught.value.kind is ErrorKind.MISSING_RECORDING
        assert str(caught.value) == (f"no recorded answer for case 'c1' (cases.jsonl:1): {message}")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                '{"id": "a", "output": 1}\n{"id": "a"}',
                "r.jsonl, line 2: needs at least one of 'output'",
            ),
            ('{"id": "a", "output": 1, "x": 2}', "r.jsonl, line 1: x: Extra inputs are not"),
            ("\n[", "r.jsonl, line 2: not JSON in UTF-8"),
            (
                '{"id": "a", "output": 1}\n{"id": "a", "output": 2}',
                "r.jsonl, line 2: id 'a' is recorded twice for the same trial; line 1 has it too",
            ),
        ],
        ids=["no output", "unknown field", "not json", "twice"],
    )
    def test_a_malformed_file_is_refused_with_its_line(
        self, tmp_path: Path, text: str, message: str
    ) -> None:
        (tmp_path / "r.jsonl").write_text(text)
        with pytest.raises(SuiteError) as caught:
            build(tmp_path, kind="recorded", path="r.jsonl")
        assert str(caught.value).startswith(message)

    @pytest.mark.parametrize(
        "sources", [{}, {"field": "a", "path": "b"}, {"field": "a", "template": "b"}]
    )
    def test_exactly_one_source_is_given(self, sources: dict[str, str]) -> None:
        with pytest.raises(ValidationError, match="exactly one of 'field', 'path' and 'template'"):
            RecordedHarness(kind="recorded", **sources)


def test_importing_harnesses_does_not_import_httpx() -> None:
    code = "import sys, weirbox.harnesses; print('httpx' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
