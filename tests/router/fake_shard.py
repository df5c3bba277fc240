r"""A shard that speaks the control channel and accepts connections, and does nothing else: for tests of the router.

Each connection is told `<shard> <pid> <boot_id>\n` and then held open. What it does wrong is chosen by the environment:
FAKE_SHARD_FATAL=<reason> says Fatal, FAKE_SHARD_EXIT=<code> exits before Linked, FAKE_SHARD_MUTE=1 never says Ready,
FAKE_SHARD_BABBLE=1 sends bytes that are no message, FAKE_SHARD_BOOT_LOG=<path> appends what it learned at boot.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

from gnatswarm.shards.boundary import control, handoff, keeping
from gnatswarm.shards.boundary.page import Page

BLOCKED = sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))


class FakeShard:
    def __init__(self, control_fd: int, lifeline_fd: int) -> None:
        self.sock = socket.socket(fileno=control_fd)
        self.lifeline = socket.socket(fileno=lifeline_fd)
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[int] = self.loop.create_future()
        self.channel = control.Channel(self.sock, control.ToShard, self.on_message, self.on_closed)
        self.loop.add_reader(lifeline_fd, self.on_lifeline)
        self.generation = 0
        self.boot: control.Boot | None = None
        self.page: Page | None = None
        self.clients: list[socket.socket] = []
        self.is_ready = False
        self.link: socket.socket | None = None

    def on_closed(self, _error: control.ControlError | None) -> None:
        if not self.done.done() and not self.is_ready:
            self.done.set_result(9)

    def on_lifeline(self) -> None:
        descriptor = keeping.receive_channel(self.lifeline)
        if descriptor is None:
            if not self.done.done():
                self.done.set_result(9)
        elif descriptor >= 0:
            self.channel.close_silently()
            self.sock = socket.socket(fileno=descriptor)
            self.channel = control.Channel(self.sock, control.ToShard, self.on_message, self.on_closed)
            self.channel.send(control.Resumed(True, True, self.generation))

    def on_message(self, message: control.ControlMessage) -> None:
        if isinstance(message, control.Boot):
            self.on_boot(message)
        elif isinstance(message, control.LinkedShards):
            assert self.page is not None
            assert self.boot is not None
            self.page.store(self.boot.shard, "links", len(message.shards) - 1)
            if not self.is_ready and not os.environ.get("FAKE_SHARD_MUTE"):
                self.is_ready = True
                self.accept()
                self.channel.send(control.Ready())
        elif isinstance(message, control.Ping):
            self.channel.send(control.Pong(message.seq))
        elif isinstance(message, control.Reload):
            self.generation = message.generation
            assert self.boot is not None
            with Path(os.environ["FAKE_SHARD_BOOT_LOG"] + ".reloads").open("a") as file:
                file.write(json.dumps({"shard": self.boot.shard, "generation": message.generation}) + "\n")
            self.channel.send(control.Reloaded(message.generation))
        elif isinstance(message, control.Stop):
            self.finish(0)
        elif isinstance(message, control.Drain | control.LameDuck):
            self.loop.call_later(0.2, self.drained)

    def on_boot(self, boot: control.Boot) -> None:
        self.boot = boot
        self.page = Page.attach(boot.page_fd)
        if os.environ.get("FAKE_SHARD_BOOT_LOG"):
            row = {
                "shard": boot.shard,
                "pid": os.getpid(),
                "boot_id": boot.boot_id,
                "link_dir": boot.link_dir,
                "fds": sorted(int(name) for name in os.listdir("/proc/self/fd")),
                "given": [
                    *boot.listener_fds,
                    *boot.websocket_fds,
                    boot.page_fd,
                    boot.handoff_fd,
                    self.sock.fileno(),
                    self.lifeline.fileno(),
                ],
                "blocked": BLOCKED,
                "port": boot.port,
                "server_id": boot.server_id,
            }
            with Path(os.environ["FAKE_SHARD_BOOT_LOG"]).open("a") as file:
                file.write(json.dumps(row) + "\n")
        if os.environ.get("FAKE_SHARD_EXIT"):
            os._exit(int(os.environ["FAKE_SHARD_EXIT"]))
        if os.environ.get("FAKE_SHARD_FATAL"):
            self.channel.send(control.Fatal(os.environ["FAKE_SHARD_FATAL"]))
            self.finish(1)
            return
        if os.environ.get("FAKE_SHARD_BABBLE"):
            self.sock.send(b"\x00\x00\x00\x03abc")
            return
        path = f"{boot.link_dir}/{boot.shard}.{boot.boot_id}.sock"
        self.link = socket.socket(socket.AF_UNIX)
        self.link.bind(path)
        self.link.listen()
        self.channel.send(control.Linked(path))

    def accept(self) -> None:
        assert self.boot is not None
        for fd in self.boot.listener_fds:
            listener = socket.socket(fileno=fd)
            self.loop.add_reader(fd, self.on_listener, listener)
        if self.boot.handoff_fd >= 0:
            queue = socket.socket(fileno=self.boot.handoff_fd)
            self.loop.add_reader(queue.fileno(), self.on_queue, queue)

    def on_listener(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            return
        self.on_client(client)

    def on_queue(self, queue: socket.socket) -> None:
        for fd in handoff.receive_descriptors(queue) or []:
            self.on_client(socket.socket(fileno=fd))

    def on_client(self, client: socket.socket) -> None:
        assert self.boot is not None
        assert self.page is not None
        shard = self.boot.shard
        self.page.store(shard, "accepted_sockets", self.page.snapshot(shard)["accepted_sockets"] + 1)
        if not self.page.try_add_connection(shard, self.boot.options.limits.max_connections):
            client.close()
            return
        client.setblocking(True)
        client.sendall(f"{shard} {os.getpid()} {self.boot.boot_id}\n".encode())
        client.setblocking(False)
        self.clients.append(client)
        self.loop.add_reader(client.fileno(), self.on_client_bytes, client)

    def on_client_bytes(self, client: socket.socket) -> None:
        try:
            data = client.recv(1024)
        except OSError:
            data = b""
        if not data:
            assert self.boot is not None
            assert self.page is not None
            self.loop.remove_reader(client.fileno())
            client.close()
            self.clients.remove(client)
            self.page.remove_connection(self.boot.shard)

    def drained(self) -> None:
        self.channel.send(control.Drained())
        self.finish(0)

    def finish(self, code: int) -> None:
        if not self.done.done():
            self.done.set_result(code)


async def main() -> int:
    # PR_SET_PDEATHSIG; a real one is SIGKILLed, see the control channel's end.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    control_fd, lifeline_fd = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("--control-fd", "--lifeline-fd"))
    return await FakeShard(control_fd, lifeline_fd).done


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
