"""One contract for every kind of compute, and what only some of them promise."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from weirbox import compute
from weirbox.compute import bubblewrap, process
from weirbox.compute.local import LocalCompute
from weirbox.compute.sandbox import MARKER
from weirbox.domain.seams import Compute, Handle
from weirbox.domain.spec import ComputeSpec
from weirbox.errors import ComputeLost, PreflightError, ProvisionError

REASON = bubblewrap.unavailable()
needs_bubblewrap = pytest.mark.skipif(REASON is not None, reason=f"no bubblewrap here: {REASON}")
KINDS = [
    pytest.param("local", id="local"),
    pytest.param("bubblewrap", id="bubblewrap", marks=needs_bubblewrap),
]
SUPERVISOR = """
import asyncio, sys, tempfile
from weirbox import compute
from weirbox.domain.spec import ComputeSpec

async def main():
    tempfile.tempdir = sys.argv[2]
    handle = await compute.build(sys.argv[1]).provision(ComputeSpec(), correlation="c")
    await handle.exec(["sh", "-c", "setsid sleep 86391 & sleep 86391 & wait"])

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=KINDS)
async def machine(request: pytest.FixtureRequest) -> AsyncIterator[Compute]:
    built = compute.build(request.param)
    yield built
    await built.aclose()


@pytest.fixture
async def handle(machine: Compute) -> Handle:
    return await machine.provision(ComputeSpec(processes=40), correlation="run/case#1")


async def shell(handle: Handle, script: str, **kwargs: object) -> tuple[int | None, str]:
    result = await handle.exec(["sh", "-c", script], **kwargs)  # type: ignore[arg-type]
    return result.exit_code, result.stdout.decode()


def folders(temporary: Path) -> list[Path]:
    return list(temporary.glob(f"weirbox-{os.getuid()}/*"))


def running(*words: str) -> list[int]:
    """The processes whose command line ends with these words."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        line = one.info["cmdline"] or []
        if line[-len(words) :] == list(words) and one.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(one.pid)
    return found


def below(folder: Path) -> dict[str, int]:
    """The files below a folder by name, with their sizes."""
    return {file.name: file.stat().st_size for file in folder.rglob("*") if file.is_file()}


def start_supervisor(kind: str, temporary: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SUPERVISOR, kind, str(temporary)])


async def eventually(condition: object, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_command_gives_its_status_and_both_outputs(handle: Handle) -> None:
    result = await handle.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.timed_out, result.truncated) == (False, False)


async def test_standard_input_is_passed_and_is_empty_by_default(handle: Handle) -> None:
    assert await shell(handle, "wc -c", stdin=b"\0" * 3_000_000) == (0, "3000000\n")
    assert await shell(handle, "wc -c") == (0, "0\n")


async def test_commands_start_in_the_work_folder_or_below_it(handle: Handle) -> None:
    await handle.put({"deep/er/file": b""})
    assert await shell(handle, "pwd -P") == (0, f"{handle.workdir}\n")
    assert await shell(handle, "pwd -P", cwd="deep/er") == (0, f"{handle.workdir}/deep/er\n")
    inside = f"{handle.workdir}/deep"
    assert await shell(handle, "pwd -P", cwd=inside) == (0, f"{inside}\n")
    for cwd, error in [
        ("..", PermissionError),
        ("/etc", PermissionError),
        ("nowhere", FileNotFoundError),
        ("deep/er/file", NotADirectoryError),
    ]:
        with pytest.raises(error):
            await handle.exec(["true"], cwd=cwd)


async def test_the_environment_is_clean_but_for_what_is_given(
    machine: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-parent")
    spec = ComputeSpec(env={"GIVEN": "suite", "BOTH": "suite"})
    handle = await machine.provision(spec, correlation="c")
    _, out = await shell(handle, "env", env={"BOTH": "call"})
    seen = dict(line.split("=", 1) for line in out.splitlines())
    assert "SOME_API_KEY" not in seen
    assert (seen["GIVEN"], seen["BOTH"], seen["HOME"]) == ("suite", "call", handle.workdir)
    allowed = {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", MARKER}
    assert set(seen) - allowed == {"GIVEN", "BOTH"}


async def test_the_running_interpreter_works_inside_with_its_packages(handle: Handle) -> None:
    program = Path(sys.executable).name
    code = "import sys, pydantic; print(sys.prefix)"
    result = await handle.exec([program, "-c", code])
    assert (result.exit_code, result.stdout.decode()) == (0, f"{sys.prefix}\n")


async def test_a_missing_program_is_status_127(handle: Handle) -> None:
    assert (await handle.exec(["no-such-program"])).exit_code == 127
    await handle.put({"data": b"not a program"})
    assert (await handle.exec(["./data"])).exit_code == 126


async def test_a_death_by_signal_is_a_status_above_128(handle: Handle) -> None:
    assert (await handle.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137


async def test_a_time_limit_keeps_partial_output_and_kills_what_ignores_it(handle: Handle) -> None:
    script = "trap '' TERM; echo part; setsid sleep 86392 & sleep 86393"
    result = await handle.exec(["sh", "-c", script], timeout_s=0.3)
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"part\n")
    assert await eventually(lambda: not running("sleep", "86392") + running("sleep", "86393"))


@pytest.mark.parametrize("status", [124, 137])
async def test_a_status_like_that_of_a_time_limit_is_not_one(handle: Handle, status: int) -> None:
    result = await handle.exec(["sh", "-c", f"exit {status}"], timeout_s=30)
    assert (result.exit_code, result.timed_out) == (status, False)


@pytest.mark.parametrize("seconds", [1e9, 1e30, float("inf")])
async def test_a_huge_time_limit_is_no_limit(handle: Handle, seconds: float) -> None:
    assert await shell(handle, "echo fine", timeout_s=seconds) == (0, "fine\n")


async def test_of_a_gigabyte_of_output_the_tail_is_kept_in_bounded_memory_and_disk(
    handle: Handle, temporary: Path
) -> None:
    before = psutil.Process().memory_info().rss
    result = await handle.exec(
        ["sh", "-c", "head -c 1000000000 /dev/zero; echo end"], output_limit=100_000
    )
    assert (len(result.stdout), result.stdout[-5:]) == (100_000, b"\0end\n")
    assert (result.truncated, result.exit_code) == (True, 0)
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    assert sum(below(temporary).values()) < 10_000


async def test_an_output_of_just_the_limit_is_whole(handle: Handle) -> None:
    result = await handle.exec(["printf", "12345"], output_limit=5)
    assert (result.stdout, result.truncated) == (b"12345", False)
    result = await handle.exec(["printf", "123456"], output_limit=5)
    assert (result.stdout, result.truncated) == (b"23456", True)


async def test_a_survivor_that_holds_the_output_open_is_not_waited_for(handle: Handle) -> None:
    result = await handle.exec(["sh", "-c", "setsid yes & echo started >&2"], timeout_s=60)
    assert (result.exit_code, result.stderr, result.timed_out) == (0, b"started\n", False)
    await handle.quiesce()


@pytest.mark.parametrize(
    "script",
    ["setsid sleep 86394 &", "env -i setsid sleep 86394 &", "(setsid sh -c 'sleep 86394' &)"],
    ids=["own session", "own session and environment", "orphan"],
)
async def test_nothing_runs_on_after_quiesce(handle: Handle, script: str) -> None:
    await shell(handle, script)
    await handle.quiesce()
    assert running("sleep", "86394") == []
    assert await shell(handle, "echo usable") == (0, "usable\n")


async def test_a_fork_bomb_meets_the_limit_on_processes(handle: Handle) -> None:
    if handle.workdir != bubblewrap.WORK and os.geteuid() == 0:
        pytest.skip("without namespaces the kernel limits no process of root")
    code, _ = await shell(handle, "for i in $(seq 9000); do sleep 86395 & done", timeout_s=20)
    assert code not in (0, None)
    await handle.quiesce()
    assert running("sleep", "86395") == []


async def test_memory_is_limited(machine: Compute) -> None:
    handle = await machine.provision(ComputeSpec(memory_mb=200), correlation="c")
    program = Path(sys.executable).name
    result = await handle.exec([program, "-c", "len(bytearray(400 * 2**20))"])
    assert (result.exit_code, b"MemoryError" in result.stderr) == (1, True)


async def test_files_go_in_and_come_out(handle: Handle) -> None:
    await handle.put({"a/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\ncat a/b.bin"})
    assert await handle.get("a/b.bin") == bytes(range(256))
    assert await handle.get("./a//b.bin", limit=3) == b"\0\1\2"
    ran = await handle.exec(["./run.sh"])
    assert (ran.stdout, ran.stderr) == (bytes(range(256)), b"")
    assert await shell(handle, "echo more >> a/b.bin; echo new > a/c; rm run.sh") == (0, "")
    assert await handle.get("a/c") == b"new\n"


async def test_put_replaces_whatever_stands_there(handle: Handle) -> None:
    made = "mkdir -p t/test.py/x; ln -s /etc/passwd link; echo old > file; echo old > folder"
    await shell(handle, f"{made}; mkdir shut; chmod 0 shut; chmod 444 file")
    files = ["t/test.py", "link", "file", "folder/inner", "shut/inner"]
    await handle.put(dict.fromkeys(files, b"new"))
    assert [await handle.get(path) for path in files] == [b"new"] * 5
    assert (await shell(handle, "wc -c < /etc/passwd"))[1] != "3\n"


HOSTILE = [
    pytest.param("../escape", id="parent"),
    pytest.param("a/../../escape", id="parent further down"),
    pytest.param("a/../b", id="parent that stays inside"),
    pytest.param("/etc/passwd", id="absolute"),
    pytest.param("a\0b", id="NUL"),
    pytest.param("root/etc/passwd", id="through a link to the root"),
    pytest.param("up/escape", id="through a link to the parent"),
    pytest.param("loop/x", id="through a loop of links"),
]


@pytest.mark.parametrize("path", HOSTILE)
async def test_a_path_that_leads_out_is_refused(handle: Handle, temporary: Path, path: str) -> None:
    await shell(handle, "ln -s / root; ln -s ../.. up; ln -s loop loop")
    with pytest.raises(PermissionError):
        await handle.get(path)
    with pytest.raises(PermissionError):
        await handle.put({path: b"pwned"})
    assert "escape" not in below(temporary)


async def test_links_that_stay_inside_are_followed_and_others_are_not(handle: Handle) -> None:
    await shell(
        handle,
        "mkdir d; echo x > d/real; ln -s d/real near; ln -s $HOME/d/real far; ln -s d folder;"
        "ln -s /etc/passwd out; ln -s ../passwd owner; ln -s nowhere dangling; mkfifo fifo",
    )
    assert [await handle.get(p) for p in ("near", "far", "folder/real")] == [b"x\n"] * 3
    for path in ("out", "owner", "fifo"):
        with pytest.raises(PermissionError):
            await handle.get(path)
    with pytest.raises(IsADirectoryError):
        await handle.get("folder")
    for path in ("dangling", "nowhere", "d/real/below", "x" * 5000):
        with pytest.raises(FileNotFoundError):
            await handle.get(path)
    assert await handle.glob("**") == ["d/real", "far", "near"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "d/b.txt", "d/e/c.txt"]),
        ("d/**", ["d/.hidden", "d/b.txt", "d/e/c.txt"]),
        ("d/*", ["d/.hidden", "d/b.txt"]),
        ("d/[a-c].t?t", ["d/b.txt"]),
        ("nothing", []),
        ("d", []),
    ],
)
async def test_glob_lists_files_by_pattern(handle: Handle, pattern: str, found: list[str]) -> None:
    await handle.put(dict.fromkeys(["a.txt", "d/b.txt", "d/e/c.txt", "d/.hidden"], b""))
    assert await handle.glob(pattern) == found


async def test_unreadable_files_are_refused_unless_we_are_root(handle: Handle) -> None:
    await shell(handle, "echo x > shut; chmod 0 shut")
    if os.geteuid() == 0:
        assert await handle.get("shut") == b"x\n"
    else:
        with pytest.raises(PermissionError):
            await handle.get("shut")


async def test_release_removes_even_what_was_closed_or_nested_without_end(
    handle: Handle, temporary: Path
) -> None:
    program = Path(sys.executable).name
    nest = "import os\nfor _ in range(1500): os.mkdir('deeper'); os.chdir('deeper')"
    await handle.exec([program, "-c", nest])
    await shell(handle, "mkdir -p shut/in; touch shut/in/file; chmod 0 shut/in shut; chmod 0 .")
    assert len(folders(temporary)) == 1
    await handle.release()
    await handle.release()
    assert folders(temporary) == []
    with pytest.raises(ComputeLost, match="is gone"):
        await handle.exec(["true"])


async def test_release_stops_a_running_command(handle: Handle) -> None:
    task = asyncio.create_task(handle.exec(["sleep", "86396"]))
    assert await eventually(lambda: running("sleep", "86396"))
    await handle.release()
    with pytest.raises(ComputeLost, match="was stopped"):
        await task
    assert running("sleep", "86396") == []


async def test_a_cancelled_exec_leaves_no_process(handle: Handle) -> None:
    task = asyncio.create_task(handle.exec(["sleep", "86397"]))
    assert await eventually(lambda: running("sleep", "86397"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually(lambda: not running("sleep", "86397"))


async def test_many_commands_run_at_a_time(machine: Compute) -> None:
    async def one(number: int) -> tuple[int | None, str]:
        handle = await machine.provision(ComputeSpec(), correlation=f"c{number}")
        found = await shell(handle, f"echo {number} > n; sleep 0.2; cat n")
        await handle.release()
        return found

    found = await asyncio.gather(*(one(number) for number in range(64)))
    assert found == [(0, f"{number}\n") for number in range(64)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_supervisor_leaves_nothing_once_reaped(kind: str, temporary: Path) -> None:
    supervisor = start_supervisor(kind, temporary)
    words = ("sleep", "86391")
    assert await eventually(lambda: len(running(*words)) == 2)
    machine = compute.build(kind)
    assert (await machine.reap(), len(folders(temporary))) == (0, 1)
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    if kind == "bubblewrap":
        assert await eventually(lambda: running(*words) == [])
    assert (await machine.reap(), folders(temporary), running(*words)) == (1, [], [])
    assert await machine.reap() == 0
    await machine.aclose()


async def test_a_folder_that_others_may_enter_is_not_used(temporary: Path) -> None:
    root = temporary / f"weirbox-{os.getuid()}"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ProvisionError, match="not ours alone"):
        await LocalCompute().provision(ComputeSpec(), correlation="c")


@needs_bubblewrap
class TestBubblewrap:
    @pytest.fixture
    async def handle(self) -> AsyncIterator[Handle]:
        machine = compute.build("bubblewrap")
        yield await machine.provision(ComputeSpec(), correlation="c")
        await machine.aclose()

    async def test_neither_the_home_nor_other_processes_are_seen(
        self, handle: Handle, temporary: Path
    ) -> None:
        (temporary / "secret").write_text("x")
        _, out = await shell(handle, f"cat {temporary}/secret {Path.home()}/.bashrc; ls /proc")
        processes = [name for name in out.split() if name.isdigit()]
        assert "x" not in out.split()
        assert len(processes) < 8

    async def test_there_is_no_network_unless_asked_for(self, handle: Handle) -> None:
        assert await shell(handle, "tail -n +3 /proc/net/dev | cut -d: -f1") == (0, "    lo\n")
        machine = compute.build("bubblewrap")
        open_one = await machine.provision(ComputeSpec(network=True), correlation="c")
        found = await shell(open_one, "readlink /proc/self/ns/net")
        assert found == (0, os.readlink("/proc/self/ns/net") + "\n")
        await machine.aclose()

    async def test_no_capability_is_left_and_the_system_is_read_only(self, handle: Handle) -> None:
        _, out = await shell(handle, "grep -E '^(Cap|NoNew)' /proc/self/status")
        lines = dict(line.split(":\t") for line in out.splitlines())
        assert {lines[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert lines["NoNewPrivs"] == "1"
        for place in ("/", "/usr", "/etc", "/dev", sys.prefix):
            assert (await shell(handle, f"touch {place}/x 2>/dev/null"))[0] != 0
        assert (await shell(handle, "mount -o remount,rw /usr 2>/dev/null"))[0] != 0
        assert await shell(handle, "touch /tmp/x /dev/shm/x $HOME/x") == (0, "")

    async def test_a_sandbox_killed_from_outside_is_lost(self, handle: Handle) -> None:
        task = asyncio.create_task(handle.exec(["sleep", "86398"]))
        assert await eventually(lambda: running("sleep", "86398"))
        for child in psutil.Process().children():
            if child.name() == "bwrap":
                child.kill()
        with pytest.raises(ComputeLost, match="died under 'sleep'"):
            await task

    async def test_a_sandbox_that_cannot_be_made_is_lost_and_says_why(
        self, handle: Handle, temporary: Path
    ) -> None:
        (folders(temporary)[0] / "passwd").unlink()
        with pytest.raises(ComputeLost, match="Can't find source path"):
            await handle.exec(["true"])

    async def test_output_like_that_of_bubblewrap_is_just_output(self, handle: Handle) -> None:
        result = await handle.exec(["sh", "-c", "echo 'bwrap: execvp x: No such' >&2; exit 1"])
        assert (result.exit_code, result.stderr) == (1, b"bwrap: execvp x: No such\n")

    async def test_the_host_ends_what_stops_the_clock_inside(
        self, handle: Handle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bubblewrap, "HOST_GRACE_S", 0.3)
        script = "echo part; kill -STOP $PPID; sleep 86399"
        result = await handle.exec(["sh", "-c", script], timeout_s=0.2)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"part\n")
        assert await eventually(lambda: running("sleep", "86399") == [])

    async def test_values_of_variables_stand_in_no_command_line(self, handle: Handle) -> None:
        task = asyncio.create_task(handle.exec(["sleep", "86400"], env={"KEY": "sk-hidden"}))
        assert await eventually(lambda: running("sleep", "86400"))
        lines = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
        assert [line for line in lines if "sk-hidden" in line] == []
        await handle.release()
        with pytest.raises(ComputeLost):
            await task


class TestChoice:
    @pytest.fixture
    def no_bubblewrap(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
        monkeypatch.setenv("PATH", str(tmp_path))
        bubblewrap.unavailable.cache_clear()
        compute._warn.cache_clear()
        yield
        bubblewrap.unavailable.cache_clear()

    @pytest.mark.usefixtures("no_bubblewrap")
    def test_auto_falls_back_to_local_and_says_so_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "weirbox.compute"):
            names = [compute.build("auto").name for _ in range(3)]
        assert names == ["local"] * 3
        assert [record.message for record in caplog.records] == [
            "bubblewrap does not work here (there is no 'bwrap' on the PATH): commands run as "
            "plain processes, which see this machine's files and network and may outlive a "
            "killed driver until they are reaped"
        ]

    @pytest.mark.usefixtures("no_bubblewrap")
    def test_bubblewrap_that_does_not_work_is_refused_with_the_reason(self) -> None:
        with pytest.raises(PreflightError, match=r"no 'bwrap' on the PATH.*'compute\.kind'"):
            compute.build("bubblewrap")

    @needs_bubblewrap
    def test_auto_takes_bubblewrap_where_it_works(self) -> None:
        assert compute.build("auto").name == "bubblewrap"

    def test_local_is_taken_without_a_word_when_asked_for(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (compute.build("local").name, caplog.records) == ("local", [])

    def test_capacity_is_the_number_of_usable_processors(self) -> None:
        assert compute.build("local").capacity == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("limit", [1, 10, 99, 100, 101])
def test_a_tail_is_the_end_of_what_came(limit: int) -> None:
    tail = process.Tail(limit)
    for at in range(0, 100, 7):
        tail.add(bytes(range(at, min(at + 7, 100))))
    whole = bytes(range(100))
    assert (tail.bytes(), tail.truncated) == (whole[-limit:], limit < 100)
