"""Log lines: the server's format, one shared file, and nothing that goes wrong with it stops a broker."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from gnatswarm.broker.options import Logging
from gnatswarm.shards.boundary import logs

LINE = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(INF|WRN|ERR|DBG|TRC|FTL)\] (.*)")
log = logging.getLogger("gnatswarm.test")


@pytest.fixture(autouse=True)
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger(logs.ROOT)
    before = root.level, root.propagate, list(root.handlers), logging.raiseExceptions
    yield
    ours, root.handlers = root.handlers, []
    for handler in ours:
        handler.close()
    root.level, root.propagate, root.handlers, logging.raiseExceptions = before
    root.setLevel(before[0])  # empties the cache of enabled levels


def lines(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_is_the_servers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path), debug=True, trace=True), process_label=logs.ROUTER_LABEL)
    for level in (logs.TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        log.log(level, "text %d", level)
    found = [LINE.fullmatch(line) for line in lines(path)]
    assert [match and match[1] for match in found] == ["TRC", "DBG", "INF", "WRN", "ERR", "FTL"]
    assert lines(path)[0].startswith(f"[{os.getpid()}] ")
    assert lines(path)[2].endswith("[INF] text 20")


def test_without_logtime_only_pid_level_and_text_are_left(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path), logtime=False), process_label=logs.ROUTER_LABEL)
    log.info("hi")
    assert path.read_text() == f"[{os.getpid()}] [INF] hi\n"


def test_a_shard_says_which_it_is(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path)), process_label="shard 3")
    log.info("hi")
    assert lines(path)[0].endswith("[INF] shard 3 - hi")


@pytest.mark.parametrize(
    ("debug", "trace", "shown"),
    [(False, False, []), (True, False, ["DBG"]), (False, True, ["TRC"]), (True, True, ["DBG", "TRC"])],
)
def test_debug_and_trace_are_independent(tmp_path: pathlib.Path, debug: bool, trace: bool, shown: list[str]) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path), debug=debug, trace=trace), process_label=logs.ROUTER_LABEL)
    log.debug("d")
    log.log(logs.TRACE, "t")
    assert [match[1] for line in lines(path) if (match := LINE.fullmatch(line))] == shown


def test_json_lines_when_asked_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path), format="json"), process_label="shard 1")
    log.warning("two\nlines %s", '{"pass":"x"}')
    (row,) = map(json.loads, lines(path))
    assert row["level"] == "WRN"
    assert row["process"] == "shard 1"
    assert row["text"] == 'two\nlines {"pass":"[REDACTED]"}'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"user":"u","pass":"p\\"q","x":1}', '{"user":"u","pass":"[REDACTED]","x":1}'),
        (
            '{"auth_token": "t", "sig":"s","jwt":"j"}',
            '{"auth_token": "[REDACTED]", "sig":"[REDACTED]","jwt":"[REDACTED]"}',
        ),
        ('{"PASS":"cut off in the mid', '{"PASS":"[REDACTED]"'),
        ('{"auth_token":12345,"pass" : -1.5e3}', '{"auth_token":[REDACTED],"pass" : [REDACTED]}'),
        (
            '{"pa\\u0073s":"s","auth_tok\\u0065n":5,"lang":"c"}',
            '{"pa\\u0073s":"[REDACTED]","auth_tok\\u0065n":"[REDACTED]","lang":"c"}',
        ),
        (
            '{"pass":["s","t"],"proxy_sig":"s","jwt":S8S}',
            '{"pass":[REDACTED],"proxy_sig":"[REDACTED]","jwt":[REDACTED]}',
        ),
        ('{"pa\\u0073s":["s"],"lang":"c"}', '{"pa\\u0073s":"[REDACTED]","lang":"c"}'),
        ('{"name":"a\\u0062","lang":"\\"c"}', '{"name":"a\\u0062","lang":"\\"c"}'),
        ('{"pass":{"a":{"b":1},"c":"s"},"x":1}', '{"pass":[REDACTED]'),
        ('{"pass":[["x"],"s"],"x":1}', '{"pass":[REDACTED]'),
        ('{"pass":{"a":"}s"},"x":[["y"]]}', '{"pass":[REDACTED],"x":[["y"]]}'),
        ('{"pa\\u0073s":{"a":{"b":1},"c":"s"},"x":1}', '{"pa\\u0073s":"[REDACTED]"'),
        ("cid:1 - <<- [CONNECT {pass:s}]", "cid:1 - <<- [CONNECT {pass:[REDACTED]"),
        ("cid:1 - <<- [connect pass=s]", "cid:1 - <<- [connect pass=[REDACTED]"),
        ("cid:1 - <<- [CONNECT {'Auth_Token' : s t, u}]", "cid:1 - <<- [CONNECT {'Auth_Token' : [REDACTED]"),
        ('cid:1 - <<- [CONNECT {"pass":12 s}]', 'cid:1 - <<- [CONNECT {"pass":[REDACTED]'),
        ('cid:1 - <<- [CONNECT {"pass":"s","x":1}]', 'cid:1 - <<- [CONNECT {"pass":"[REDACTED]","x":1}]'),
        ('cid:1 - <<- [CONNECT "pass" "s"]', 'cid:1 - <<- [CONNECT "pass" "[REDACTED]'),
        ('cid:1 - <<- [CONNECT {"pass"}:"s"}]', 'cid:1 - <<- [CONNECT {"pass"}:"[REDACTED]'),
        ("cid:1 - <<- [CONNECT {x:5}]", "cid:1 - <<- [CONNECT {x:5}]"),
        ("password = 'x y'", 'password = "[REDACTED]"'),
        ("dialling nats://u:p@host:4222", "dialling nats://u:[REDACTED]@host:4222"),
        ("NATS://u:p@q@host:4222,nats://v:r@h/x@y", "NATS://u:[REDACTED]@host:4222,nats://v:[REDACTED]@h/x@y"),
        ("t.conf:1:1: pass: expected text, not a number", "t.conf:1:1: pass: expected text, not a number"),
        ("signal reload, seed 5", "signal reload, seed 5"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    assert logs.without_secrets(text) == shown


def test_a_record_is_one_line_whatever_a_client_sent(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    log.info("a\n[1] 2026/01/01 00:00:00.000000 [INF] forged\r\x1b[31m\tb \udcff é")
    (line,) = lines(path)
    assert "a\\n[1]" in line
    assert "\\r\\x1b[31m\tb \\udcff é" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_terminal_would_obey_is_escaped(tmp_path: pathlib.Path, as_json: bool) -> None:
    """Controls of 8 bits (U+009B begins a sequence as ESC and [ do), and marks that turn the direction of text."""
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path), format="json" if as_json else "text"), process_label=logs.ROUTER_LABEL)
    log.info("a\x9b31mRED\u202eb é")
    (line,) = lines(path)
    assert "a\\u009b31mRED\\u202eb é" in line


def test_a_traceback_is_a_line_of_the_log_per_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("it broke")
    assert all(LINE.fullmatch(line) for line in lines(path))
    assert lines(path)[-1].endswith("ValueError: boom")


def test_a_call_with_wrong_arguments_is_a_line_not_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    log.info("%d %d", "x")
    assert "%d %d" in lines(path)[0]


def test_a_moved_file_is_written_on_until_reopened(tmp_path: pathlib.Path) -> None:
    path, moved = tmp_path / "x.log", tmp_path / "moved"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    path.rename(moved)
    log.info("old")
    assert logs.reopen() == ""
    log.info("new")
    assert (len(lines(moved)), len(lines(path))) == (1, 1)


def test_a_vanished_directory_costs_a_reopen_and_nothing_else(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    path = folder / "x.log"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    path.unlink()
    folder.rmdir()
    log.info("into the void")
    assert "No such file or directory" in logs.reopen()
    folder.mkdir()
    assert logs.reopen() == ""
    log.info("back")
    assert len(lines(path)) == 1


def test_a_full_disk_is_said_once_and_stops_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(Logging(file="/dev/full"), process_label=logs.ROUTER_LABEL)
    for _ in range(5):
        log.info("x")
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "cannot write log file '/dev/full': No space left on device" in said


def test_when_writing_works_again_the_loss_is_counted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    path.symlink_to("/dev/full")
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    log.info("lost")
    log.info("lost too")
    path.unlink()
    logs.reopen()
    log.info("back")
    assert "2 log lines were lost" in lines(path)[0]
    assert lines(path)[1].endswith("back")


def test_a_file_that_cannot_be_opened_keeps_the_old_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    with pytest.raises(FileNotFoundError):
        logs.configure(Logging(file=str(tmp_path / "no" / "x.log")), process_label=logs.ROUTER_LABEL)
    log.info("still here")
    assert len(lines(path)) == 1


def test_a_named_pipe_that_nobody_reads_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    handler = logs.LineHandler(Logging(file=str(path)), process_label=logs.ROUTER_LABEL)
    path.unlink()
    os.mkfifo(path)
    said: list[str] = []
    reopening = threading.Thread(target=lambda: said.append(handler.reopen()), daemon=True)
    reopening.start()
    reopening.join(30)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets go of a thread that waits
    reopening.join()
    try:
        assert said == [f"cannot open log file {str(path)!r}: nobody reads this named pipe"]
        assert handler.reopen() == ""
        handler.emit(log.makeRecord(log.name, logging.INFO, "", 0, "here", (), None))
        assert os.read(reader, 1000) == b"here\n"
        assert os.get_blocking(handler.outlet.fd), "as standard error is: no line is lost while somebody reads"
    finally:
        os.close(reader)
        handler.close()


def test_standard_error_is_the_default_and_only_ours_goes_there(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure(Logging(), process_label=logs.ROUTER_LABEL)
    log.info("hi")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert LINE.fullmatch(captured.err.rstrip("\n"))


def test_the_router_rotates_and_shards_follow(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    options = Logging(file=str(path), size_limit_bytes=2000)
    shard = logs.LineHandler(options, process_label="shard 1")
    shard.setFormatter(logs.LineFormatter(logtime=True, label="shard 1"))
    logs.configure(options, process_label=logs.ROUTER_LABEL)
    record = logging.LogRecord("gnatswarm", logging.INFO, "", 0, "from a shard", None, None)
    while path.stat().st_size < 2000:
        shard.emit(record)
    logs.rotate_when_full()
    shard.emit(record)
    (backup,) = tmp_path.glob("x.log.*")
    assert re.fullmatch(r"x\.log\.\d{4}(\.\d\d){5}\.\d{9}", backup.name)
    assert backup.stat().st_size >= 2000
    assert [line.split("] ", 2)[2] for line in lines(path)] == [
        f'Rotated log, backup saved as "{backup}"',
        "shard 1 - from a shard",
    ]
    shard.close()


@pytest.mark.parametrize(("most", "left"), [(0, 5), (1, 0), (3, 2)])
def test_of_rotated_files_the_newest_are_kept(tmp_path: pathlib.Path, most: int, left: int) -> None:
    path = tmp_path / "x.log"
    others = [tmp_path / "x.log.old", tmp_path / "x.log.2026.11.23.05.16.13", tmp_path / "y.log"]
    for other in others:
        other.write_text("")
    logs.configure(Logging(file=str(path), size_limit_bytes=500, most_files=most), process_label=logs.ROUTER_LABEL)
    for number in range(5):
        path.write_text(f"{number}\n" + "x" * 500)
        logs.rotate_when_full()
    backups = sorted(tmp_path.glob("x.log.*.?????????"))
    assert [backup.read_text()[0] for backup in backups] == ["0", "1", "2", "3", "4"][5 - left :]
    assert all(other.exists() for other in others)


@pytest.mark.parametrize(
    ("changed_s", "left"),
    [
        ((2000, 3000, 4000), "12"),  # though the name of the latest sorts before the others': summer time has ended
        ((6000, 7000, 4000), "12"),  # somebody has set the clock back, so that the other two seem to be newer
        ((4000, 4000, 4000), "01"),  # written at once: by name
    ],
)
def test_of_rotated_files_the_newest_are_kept_whatever_their_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, changed_s: tuple[int, ...], left: str
) -> None:
    path = tmp_path / "x.log"
    names = [tmp_path / f"x.log.2026.10.25.02.{minute}.00.000000000" for minute in (40, 50, 10)]
    for number, (name, at_s) in enumerate(zip(names, changed_s, strict=True)):
        path.write_text(f"{number}\n" + "x" * 500)
        os.utime(path, (at_s, at_s))
        if name is not names[-1]:
            path.rename(name)
    monkeypatch.setattr(logs, "_backup_name", lambda _: str(names[-1]))
    options = Logging(file=str(path), size_limit_bytes=500, most_files=3)
    logs.configure(options, process_label=logs.ROUTER_LABEL)
    logs.rotate_when_full()
    assert "".join(sorted(name.read_text()[0] for name in names if name.exists())) == left


def test_a_log_that_cannot_be_renamed_is_said_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance a file that is mounted into a container."""
    path = tmp_path / "x.log"

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    logs.configure(Logging(file=str(path), size_limit_bytes=500), process_label=logs.ROUTER_LABEL)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", busy)
        for number in range(50):
            log.info("line %d %s", number, "x" * 50)
    found = lines(path)
    assert sum("[INF] line " in line for line in found) == 50
    assert [line for line in found if "[ERR]" in line and f'rotate the log "{path}": Device or resource busy' in line]
    assert len(found) == 51
    log.info("it goes on")
    assert len(list(tmp_path.glob("x.log.*"))) == 1


def test_lines_of_many_processes_do_not_mix(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    code = (
        "import logging, sys; from gnatswarm.broker.options import Logging; from gnatswarm.shards.boundary import logs;"
        f"logs.configure(Logging(file={str(path)!r}), process_label='shard 1');"
        "[logging.getLogger('gnatswarm').info('x' * 300) for _ in range(300)]"
    )
    root = pathlib.Path(__file__).resolve().parents[3]
    writers = [subprocess.Popen([sys.executable, "-c", code], cwd=root) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(lines(path)) == 900
    assert all(line.endswith("[INF] shard 1 - " + "x" * 300) for line in lines(path))


class Client:
    """What has fields of its own for the log."""

    log_fields: ClassVar[dict[str, object]] = {"cid": 7, "address": "10.0.0.1:5", "user": "u", "account": "A"}

    def __str__(self) -> str:
        return "10.0.0.1:5 - cid:7"


def test_json_lines_name_the_client_in_fields_and_the_time_as_everybody_does(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    logs.configure(Logging(file=str(path), format="json"), process_label="shard 1")
    logger = logging.getLogger("gnatswarm.client")
    logger.error("%s - %s", Client(), "bad")
    logger.error("nobody in particular: %d", 1)
    logger.error("refused", extra={"log_fields": {"cid": 9}})
    first, second, third = map(json.loads, lines(path))
    assert Client.log_fields.items() <= first.items()
    assert "cid" not in second and third["cid"] == 9
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["time"])
    moment = datetime.datetime.fromisoformat(first["time"])
    assert moment.utcoffset() == datetime.timedelta(0)
    assert round(moment.timestamp() * 1e6) == first["time_us"]


def test_no_field_of_a_json_line_has_a_secret(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    logs.configure(Logging(file=str(path), format="json"), process_label="shard 1")
    fields = {"cid": 9, "user": "a://u:hunter@h", "account": '{"pass":"hunter"}'}
    try:
        raise OSError("cannot dial nats://u:hunter@h")
    except OSError:
        log.exception("refused", extra={"log_fields": fields})
    (row,) = map(json.loads, lines(path))
    assert (row["cid"], row["user"], row["account"]) == (9, "a://u:[REDACTED]@h", '{"pass":"[REDACTED]"}')
    assert row["traceback"][-1] == "OSError: cannot dial nats://u:[REDACTED]@h"


def test_a_log_that_cannot_be_opened_after_its_rotation_is_opened_when_that_is_possible(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance on a disk without inodes, or where there is no descriptor."""
    path = tmp_path / "x.log"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options = Logging(file=str(path), size_limit_bytes=500, most_files=2)
    logs.configure(options, process_label=logs.ROUTER_LABEL)
    shard = logs.LineHandler(options, process_label="shard 1")
    with monkeypatch.context() as patched:
        patched.setattr(logs, "_open_log", full)
        log.info("line %s", "x" * 600)
        for _ in range(20):
            logs.rotate_when_full()
            log.info("line")
    (backup,) = tmp_path.iterdir()
    found = lines(backup)
    assert sum("[INF] line" in line for line in found) == 21
    said = f"[ERR] Unable to rotate the log \"{path}\": cannot open log file '{path}': No space left on device"
    assert sum(said in line for line in found) == 1 and len(found) == 22
    logs.rotate_when_full()  # the router's tick
    assert len(lines(backup)) == 22
    shard.emit(logging.LogRecord("gnatswarm", logging.INFO, "", 0, "from a shard", None, None))
    shard.close()
    rotated, of_shard = lines(path)
    assert rotated.endswith(f'[INF] Rotated log, backup saved as "{backup}"') and of_shard == "from a shard"
    log.info("y" * 600)
    logs.rotate_when_full()
    assert backup not in tmp_path.iterdir()  # it counts as one of the backups, as before


def test_a_full_log_that_somebody_has_moved_is_opened_again(tmp_path: pathlib.Path) -> None:
    path, moved = tmp_path / "x.log", tmp_path / "moved"
    logs.configure(Logging(file=str(path), size_limit_bytes=500), process_label=logs.ROUTER_LABEL)
    log.info("x" * 600)
    path.rename(moved)
    logs.rotate_when_full()
    log.info("new")
    assert sorted(tmp_path.iterdir()) == [moved, path]
    assert (len(lines(moved)), len(lines(path))) == (1, 1)


@pytest.mark.parametrize("label", [logs.ROUTER_LABEL, "shard 1"])
def test_a_log_that_cannot_be_opened_at_the_start_is_opened_when_that_is_possible(
    label: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The shard did not start at all, and the next router logged to standard error for ever."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    path = tmp_path / "later" / "x.log"
    options = Logging(file=str(path), size_limit_bytes=100_000)
    with pytest.raises(FileNotFoundError):
        logs.configure(options, process_label=label)
    logs.configure(options, process_label=label, must_open=False)
    log.info("one")
    path.parent.mkdir()
    log.info("two")  # it is not tried for each line
    assert not path.exists()
    name = "" if label == logs.ROUTER_LABEL else f"{label} - "
    why = f"Cannot open the log file {path}: No such file or directory; until that is possible, lines go here"
    said = [LINE.fullmatch(line) for line in capfd.readouterr().err.splitlines()]
    assert [found and found[2] for found in said] == [name + why, f"{name}one", f"{name}two"]
    now_s += logs.OPEN_AGAIN_S
    log.info("three")
    assert [line.partition("] ")[2].partition("] ")[2] for line in lines(path)][-1] == f"{name}three"
    assert "can be opened now" in path.read_text() and not capfd.readouterr().err


def test_lines_go_on_where_they_went_while_the_log_of_a_reload_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    before = tmp_path / "before.log"
    logs.configure(Logging(file=str(before)), process_label="shard 1")
    elsewhere = Logging(file=str(tmp_path / "no" / "x.log"), logtime=False)
    logs.configure(elsewhere, process_label="shard 1", must_open=False)
    log.info("here")
    assert lines(before)[-1] == f"[{os.getpid()}] [INF] shard 1 - here" and len(lines(before)) == 2


def test_a_log_that_stood_in_for_a_syslog_is_not_taken_for_standard_error(
    tmp_path: pathlib.Path, unused_tcp_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two reloads later, to standard error, lines still went to the first file."""
    before = tmp_path / "before.log"
    logs.configure(Logging(file=str(before)), process_label="shard 1")
    nobody = Logging(remote_syslog=f"tcp://127.0.0.1:{unused_tcp_port}")
    logs.configure(nobody, process_label="shard 1", must_open=False)
    log.info("in the file")
    logs.configure(Logging(), process_label="shard 1")
    log.info("said")
    assert capfd.readouterr().err.endswith("[INF] shard 1 - said\n")
    assert lines(before)[-1].endswith("in the file")
