"""The command line: what each form of a flag means, what is printed, and with which exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnatswarm import keeper
from gnatswarm.broker.options import Options
from gnatswarm.broker.version import OWN_VERSION, SERVER_VERSIONS
from gnatswarm.router import cli, serving
from gnatswarm.router.commands import operator_commands
from gnatswarm.router.config import help
from gnatswarm.router.config.flags import FLAGS, BadCommandLine, parse
from tests.support.forkserver import forkserver
from tests.support.servers import Broker, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, str]]:
    """What main() would have served."""
    found: list[tuple[Options, str]] = []

    def serve(options: Options, *, program: str, **_rest: Any) -> int:
        found.append((options, program))
        return 7

    monkeypatch.setattr(serving, "serve", serve)
    # In this process: the keeper would fork it.
    monkeypatch.setattr(keeper, "keep", lambda route, **_rest: route(SimpleNamespace(legacy=None)))
    return found


@pytest.mark.parametrize("form", [["-p", "5"], ["--p", "5"], ["-port=5"], ["--port", "5"], ["--port=0x5"], ["-p=05"]])
def test_every_form_of_a_flag_means_the_same(served: list[tuple[Options, str]], form: list[str]) -> None:
    assert cli.main(form, program="gnatswarm") == 7
    assert served == [(Options(port=5), "gnatswarm")]


def test_flags_of_the_real_server_reach_the_options(served: list[tuple[Options, str]]) -> None:
    words = "-a 127.0.0.1 -n me -m 8222 -P x.pid --ports_file_dir d -l x.log -T=false -DV --user u --pass p"
    assert cli.main([*words.split(), "--client_advertise", "a:1", "--log_size_limit", "5"]) == 7
    options = served[0][0]
    assert (options.host, options.server_name, options.http_port) == ("127.0.0.1", "me", 8222)
    assert (options.pid_file, options.ports_file_dir, options.client_advertise) == ("x.pid", "d", "a:1")
    assert (options.logging.file, options.logging.logtime, options.logging.size_limit_bytes) == ("x.log", False, 5)
    assert (options.logging.debug, options.logging.trace) == (True, True)
    assert (options.auth_user, options.auth_password) == ("u", "p")


@pytest.mark.parametrize(
    ("flag", "debug", "trace"),
    [
        *(("-D", True, False), ("-V", False, True), ("-VV", False, True)),
        *(("-DV", True, True), ("--DVV", True, True), ("-D=0", False, False)),
    ],
)
def test_debug_and_trace(served: list[tuple[Options, str]], flag: str, debug: bool, trace: bool) -> None:
    cli.main([flag])
    assert (served[0][0].logging.debug, served[0][0].logging.trace) == (debug, trace)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-bogus"], "flag provided but not defined: -bogus"),
        (["--prot", "1"], "flag provided but not defined: -prot — did you mean -port?"),
        (["-p"], "flag needs an argument: -p"),
        (["--name", "a\udcff"], "the value of -name is not UTF-8"),
        (["-P=\udc80"], "the value of -P is not UTF-8"),
        (["-p", "abc"], 'invalid value "abc" for flag -p: parse error'),
        (["-p="], 'invalid value "" for flag -p: parse error'),
        (["-p", " 5"], 'invalid value " 5" for flag -p: parse error'),
        (["-p", "9" * 5000], "for flag -p: "),
        (["-p", "99999999999999999999"], "value out of range"),
        (["-D=x"], 'invalid boolean value "x" for -D: parse error'),
        (["---p"], "bad flag syntax: ---p"),
        (["-=x"], "bad flag syntax: -=x"),
        (["foo"], 'unrecognized command: "foo"'),
        (["-T", "false"], 'unrecognized command: "false"'),
        (["-"], 'unrecognized command: "-"'),
        (["--", "foo"], 'unrecognized command: "foo"'),
        (["-p", "4222", "extra"], 'unrecognized command: "extra"'),
        (["-t"], "must specify [-c, --config] option to check configuration file syntax"),
        (["-t", "-c", "/nonexistent/x"], "open /nonexistent/x: no such file or directory"),
        (["-c", "/nonexistent/x"], "open /nonexistent/x: no such file or directory"),
        (["-p", "99999"], "command line: -p: 99999 is out of range"),
        (["--tls"], "TLS Server certificate must be present and valid"),
        (["--signal", "bogus"], 'unknown signal "bogus"'),
        (["scale"], "no number of shards"),
        (["scale", "0"], "no number of shards"),
        (["scale", "63"], "no number of shards"),
        (["scale", "²"], "no number of shards"),
        (["scale", "2", "3"], 'unexpected "3" after scale'),
        (["status", "x"], 'unexpected "x" after status'),
        (["health", "--json"], "health: --json is for status and why"),
        (["--json", "scale", "2"], "scale: --json is for status and why"),
        (["-c", "FILE", "status"], "status: -c is for a start; -p PORT or -P PID says which running broker is asked"),
        (["top", "-p", "4222"], "top: -p has no effect; write the pages' address, or their port with -m"),
    ],
)
def test_a_bad_command_line_says_what_is_wrong_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], served: list[tuple[Options, str]], words: list[str], expected: str
) -> None:
    assert cli.main(words, program="gnatswarm") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gnatswarm: ")
    assert expected in printed.err
    assert served == []


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-p", "--", "-D", "scale", "-c=", "-x=y", "="]), max_size=5))
def test_any_words_are_a_command_line_or_a_bad_one(words: list[str]) -> None:
    with contextlib.suppress(BadCommandLine):
        parse(words)


@pytest.mark.parametrize("words", [["-v"], ["--version"], ["version"], ["-p", "1", "-v"]])
def test_the_version(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(words, program="gnatswarm") == 0
    assert capsys.readouterr().out == f"gnatswarm: v{OWN_VERSION}\n"
    assert cli.main(words, program="nats-server") == 0
    assert capsys.readouterr().out == f"nats-server: v{SERVER_VERSIONS['2.15']}\n"
    assert cli.main(["--compatibility", "2.9", *words], program="nats-server") == 0
    assert capsys.readouterr().out == f"nats-server: v{SERVER_VERSIONS['2.9']}\n"


def test_the_version_of_a_server_that_we_are_not_like(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--compatibility", "2.12", "-v"], program="nats-server") == 1
    assert '-compatibility "2.12" is none of 2.9, 2.15' in capsys.readouterr().err


def test_a_link_named_nats_server_is_nats_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, program in (("/usr/bin/nats-server", "nats-server"), ("gnatswarm", "gnatswarm"),
                          ("/x/gnatswarm/__main__.py", "gnatswarm")):  # fmt: skip
        monkeypatch.setattr(sys, "argv", [path])
        assert cli._called_as() == program


def test_the_version_is_the_packages() -> None:
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert packaging["project"]["version"] == OWN_VERSION


@pytest.mark.parametrize("command", [command for command in cli.COMMANDS if command not in ("help", "version")])
@pytest.mark.parametrize("words", ["{} -h", "{} --help", "-h {}", "help {}"])
def test_each_command_has_its_own_help_and_does_nothing_else(command: str, words: str, tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    done = forkserver().run(["gnatswarm", *words.format(command).split()], environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"gnatswarm {command}" in done.stdout.splitlines()[0]
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:surrogateescape"], ids=["latin-1", "the locale C"])
@pytest.mark.parametrize(
    "words", ["-h", "help doctor", "sub -h", "bench -h", "place -h", "config get server_name -c FILE"]
)
def test_what_the_terminal_cannot_show_is_shown_by_number(words: str, encoding: str, tmp_path: pathlib.Path) -> None:
    """Arrows and dots of our own, and what a file has: with the encoding of an old locale each was a traceback."""
    file = tmp_path / "broker.conf"
    file.write_text('server_name: "hé…"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gnatswarm", *words.replace("FILE", str(file)).split()],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b"" and (b"\\u2026" in done.stdout or b"\\u2192" in done.stdout)


@pytest.mark.parametrize(
    ("module", "words", "said", "code"),
    [
        ("gnatswarm.loadtest.talk", ["sub", "x", "-p", "1"], "", 0),
        ("gnatswarm.loadtest.talk", ["pub", "x", "y", "-p", "1"], "", 130),
        ("gnatswarm.loadtest.bench", ["pub", "-s", "nats://127.0.0.1:1"], "gnatswarm bench: interrupted\n", 130),
        ("gnatswarm.spark.jobs.arguments", ["place"], "gnatswarm: interrupted\n", -signal.SIGINT),
    ],
    ids=["sub", "pub", "bench", "place"],
)
def test_an_interrupt_while_a_programs_modules_are_read_is_no_traceback(
    module: str, words: list[str], said: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C waits until the program can end by it."""
    begun: list[tuple[list[str], bool]] = []

    def execv(_path: str, command: list[str]) -> None:
        begun.append((command, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(os, "execv", execv)
    cli._become(module, *words)
    try:
        ((command, is_blocked),) = begun
        assert is_blocked
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # (with our mask)
        process.send_signal(signal.SIGINT)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _out, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == (said, code)


def test_help_of_a_job_needs_no_spark(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gnatswarm", "report", "-h"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "--stats-dir" in done.stdout, done.stderr


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-h"], program="gnatswarm") == 0
    text = capsys.readouterr().out
    assert text == help.help_text("gnatswarm")
    for flag in FLAGS:
        for name in flag.names:
            assert re.search(rf"(?<![\w-])--?{name}(?!\w)", text), name
    assert max(map(len, text.splitlines())) <= 120
    assert cli.main(["--help_tls"]) == 0


def test_a_file_is_tested(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.conf"
    path.write_text("port: 1\njetstream: enabled")
    assert cli.main(["-t", "-c", str(path)], program="gnatswarm") == 0
    *notices, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"gnatswarm: configuration file {path} is valid (sha256:")
    assert len(notices) == 1
    path.write_text("foo: 1\nbar: 2")
    assert cli.main(["-t", "-c", str(path)], program="gnatswarm") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f'gnatswarm: {path}:1:1: unknown field "foo"')
    assert lines[1:3] == ["    1 | foo: …", "      | ^"]
    assert lines[3].startswith(f'{path}:2:1: unknown field "bar"')
    path.write_text("ping_interval: 5")
    assert cli.main(["-t", "-c", str(path)]) == 1


def test_scale_and_status_reach_their_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    calls: list[Any] = []

    def scale(shards: int, **which: Any) -> int:
        calls.append((shards, which))
        return 3

    def status(**which: Any) -> int:
        calls.append(which)
        return 4

    monkeypatch.setattr(operator_commands, "scale", scale)
    monkeypatch.setattr(operator_commands, "status", status)
    (tmp_path / "x.pid").write_text("1234")
    assert cli.main(["scale", "4", "-P", "77"]) == 3
    assert cli.main(["-p", "9", "status", "--json"]) == 4
    assert cli.main(["status", "-P", str(tmp_path / "x.pid")]) == 4
    assert calls == [
        (4, {"pid": 77, "port": None}),
        {"pid": None, "port": 9, "as_json": True},
        {"pid": 1234, "port": None, "as_json": False},
    ]


@pytest.mark.parametrize("words", [["-v"], ["-h"], ["-bogus"]])
def test_what_only_prints_imports_nothing_heavy(words: list[str]) -> None:
    heavy = {"asyncio", "uvloop", "msgspec", "logging", "argparse", "typing_extensions"}
    code = (
        "import sys; before = set(sys.modules); from gnatswarm.router.cli import main; "
        f"main({words!r}); print(sorted({heavy!r} & set(sys.modules)), len(set(sys.modules) - before) < 40)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[] True"


@pytest.mark.parametrize(
    "words", ["health -p 1", "status -p 1", "reload -p 1", "scale 2 -p 1", "why a -p 1", "-t -c t.conf"]
)
def test_what_asks_a_broker_or_tests_a_file_imports_no_more_than_that_needs(words: str, tmp_path: pathlib.Path) -> None:
    """A health check is a process every few seconds: with these it took twice as long."""
    heavy = {"asyncio", "uvloop", "logging", "ast", "lzma", "_ssl", "_decimal", "typing_extensions", "subprocess"}
    code = (
        "import sys; from gnatswarm.router.cli import main; from gnatswarm.shards.lean_imports import is_late; "
        f"main({words.split()!r}); print(sorted(n for n in {heavy!r} & set(sys.modules) if not is_late(n)))"
    )
    (tmp_path / "t.conf").write_text("port: 4222\n")
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "[]"


def to_full_output(words: str, is_buffered: bool) -> subprocess.CompletedProcess[str]:
    unbuffered = {} if is_buffered else {"PYTHONUNBUFFERED": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | unbuffered
    with open("/dev/full", "wb") as full:
        return subprocess.run(
            [sys.executable, "-P", "-m", "gnatswarm", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("words", ["-v", "-h", "help scale", "config get", "config get --json", "completion bash"])
def test_a_full_standard_output_is_said_in_one_line(words: str, is_buffered: bool) -> None:
    result = to_full_output(words, is_buffered)
    assert (result.returncode, result.stderr) == (1, "gnatswarm: standard output: No space left on device\n")


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize(
    "words", ["pub -h", "sub -h", "help events", "bench -h", "bench --list", "report -h", "help place"]
)
def test_a_full_standard_output_is_said_by_the_commands_that_are_programs_of_their_own(
    words: str, is_buffered: bool
) -> None:
    result = to_full_output(words, is_buffered)
    name = words.replace("help", "").replace("-h", "").replace("--list", "").strip()
    assert (result.returncode, result.stderr) == (1, f"gnatswarm {name}: standard output: no space left on device\n")


def test_a_limit_of_file_sizes_that_is_too_low_is_said_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "gnatswarm", "-a", "127.0.0.1", "-p", "-1"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY)),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "File too large; ulimit -f (LimitFSIZE= in a unit file) is too low" in result.stderr.splitlines()[-1]


def test_another_failure_is_not_taken_for_one_of_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_given: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "_run", run)
    with pytest.raises(OSError, match="No space left"):
        cli.main(["-v"], program="gnatswarm")


def test_testing_a_file_imports_no_network() -> None:
    code = "import sys; from gnatswarm.router.cli import main; main(['-t', '-c', 'deploy/config/gnatswarm.conf'])"
    code += "; print('asyncio' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_an_include_of_a_fifo_ends_the_test_of_a_file_with_an_error(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "secrets")
    (tmp_path / "t.conf").write_text("port: 4222\ninclude ./secrets\n")
    words = [sys.executable, "-m", "gnatswarm", "-t", "-c", str(tmp_path / "t.conf")]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1
    assert "t.conf:2:1" in result.stderr
    assert "is a fifo (named pipe), not a file" in result.stderr


@pytest.mark.parametrize("given", ["-c <(echo 'port: {port}')", "-c /dev/stdin < <(echo 'port: {port}')"])
def test_a_configuration_comes_through_a_pipe(given: str) -> None:
    """As with process substitution in a shell; an error in the text is reported, so it was read."""
    program = f"exec {shlex.quote(sys.executable)} -m gnatswarm -t "
    for port, code in (("4222", 0), ("none", 1)):
        words = ["bash", "-c", program + given.format(port=port)]
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
        assert result.returncode == code, result.stderr


@pytest.mark.kinds("gnatswarm-1")
def test_a_reload_does_not_read_a_pipe_again_as_an_empty_configuration(start_broker: Callable[..., Broker]) -> None:
    """Otherwise the token would be gone, and the broker open to everybody."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"authorization { token: secret }\n")
        os.close(writing)
        broker = start_broker(args=["-c", f"/proc/{os.getpid()}/fd/{reading}"])
        broker.send_signal(signal.SIGHUP)
        line = broker.log.wait_line("Failed to reload|Reloaded server configuration").string
        assert "Failed to reload" in line
        assert "nobody writes to this pipe, or it was read before" in line
    finally:
        os.close(reading)


TOLD_EARLY = """
import os, sys
from gnatswarm.router import cli
number, *words = sys.argv[1:]
run = cli._run
def run_told(*given):
    os.kill(os.getpid(), int(number))
    return run(*given)
cli._run = run_told
sys.exit(cli.main(words, program="gnatswarm"))
"""


def told_early(number: int, tmp_path: pathlib.Path, *words: str) -> subprocess.Popen[str]:
    """A program that gets this signal before it has done anything."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", TOLD_EARLY, str(number), *words],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broker_that_is_told_to_stop_before_it_can_does_it_then(tmp_path: pathlib.Path, number: int) -> None:
    program = told_early(number, tmp_path, "-a", "127.0.0.1", "-p", "-1", "--no-stats")
    _said, log = program.communicate(timeout=30)
    assert program.returncode == 0
    assert "Server Exiting.." in log and "Traceback" not in log


@pytest.mark.parametrize("number", [signal.SIGTTIN, signal.SIGTTOU])
def test_a_broker_that_is_told_to_scale_before_it_can_does_not_stand_still(tmp_path: pathlib.Path, number: int) -> None:
    """The kernel stops a process that has no handler for these. The log says that it is too early."""
    log = tmp_path / "log"
    words = ["-a", "127.0.0.1", "-p", "-1", "--no-stats", "--shards", "1", "-l", str(log)]
    with told_early(number, tmp_path, *words) as program:
        try:
            wanted = f"{signal.Signals(number).name}: "
            wait_until(lambda: log.exists() and wanted in log.read_text() and "Server is ready" in log.read_text())
        finally:
            program.send_signal(signal.SIGCONT)
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=30)
    assert program.returncode == 0


def test_a_command_that_is_no_broker_ends_by_a_signal_at_once(tmp_path: pathlib.Path) -> None:
    program = told_early(signal.SIGINT, tmp_path, "-v")
    assert program.communicate(timeout=30) == ("", "")
    assert program.returncode == -signal.SIGINT


@pytest.mark.parametrize("words", [["-v"], ["-bogus"], ["nonsense"]])
def test_a_command_leaves_the_signals_as_they_were(words: list[str]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    cli.main(words, program="gnatswarm")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
