"""The router's link to its keeper: packets out, and signals, deaths and answers in.

Before the event loop runs, what comes in waits; `listen()` delivers it in order. When the keeper has died, this process
removes the link directories and exits at once: a signal at the parent's death tells it at any moment, the end of the
socket again. Made by `router.serving`.
"""

from __future__ import annotations

import asyncio
import collections
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from gnatswarm.shards.boundary import keeping, linkdir, parentage

# A shard that was just starting may still bind its link socket.
REMOVAL_S = 2.0
REMOVAL_RETRY_S = 0.005


class KeeperLink:
    """One router's link. `legacy` is what a router before it has left; None: the broker starts."""

    def __init__(self, post: keeping.Post) -> None:
        self._sock = post.sock
        self.pid = post.keeper_pid
        self.legacy = post.legacy
        self.is_successor = post.is_successor
        self.unfit = post.unfit
        self.renewed: keeping.Renewed | None = None  # the answer to renew()
        self._decoder = keeping.decoder_of(keeping.ToRouter)
        self._link_dirs = list(post.legacy.link_dirs) if post.legacy else []
        self._waiting: collections.deque[keeping.Packet] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_signal: Callable[[int], None] = lambda number: None
        self._on_exited: Callable[[int, int], None] = lambda pid, status: None
        self.on_held: Callable[[str, bool], None] = lambda name, is_held: None  # the answer to hold()
        # The group may get a SIGTERM too, which is the keeper's business.
        signal.signal(signal.SIGTERM, self._on_term)
        parentage.die_with_parent(signal.SIGTERM)
        self._on_term()

    def _on_term(self, *_: object) -> None:
        if os.getppid() != self.pid:
            self._leave()

    def _leave(self) -> NoReturn:
        """The keeper is dead: so is the broker."""
        give_up_at = time.monotonic() + REMOVAL_S
        for path in self._link_dirs:
            linkdir.remove_left(path, self.pid)
            while linkdir.is_directory_of(self.pid, path) and time.monotonic() < give_up_at:
                time.sleep(REMOVAL_RETRY_S)
                linkdir.remove(path)
        os._exit(1)

    # ---- requests

    def launch(self, shard: int, descriptors: list[int], command: Sequence[str]) -> None:
        """Request a shard with these descriptors under the same numbers, the control channel's first."""
        self._send(keeping.Launch(shard, descriptors, list(command)), descriptors)

    def launched(self) -> int:
        """Wait for the pid of the oldest requested shard. OSError when it could not be started."""
        packet = self._wait_for(lambda packet: isinstance(packet, keeping.Launched))
        assert isinstance(packet, keeping.Launched)
        if packet.pid < 0:
            raise OSError(-packet.pid, os.strerror(-packet.pid))
        return packet.pid

    def reach(self, pid: int, descriptor: int) -> None:
        """Give that shard this end of a new control channel."""
        self._send(keeping.Reach(pid), [descriptor])

    def kill(self, pid: int) -> None:
        """SIGKILL that shard; nothing once it was reaped."""
        self._send(keeping.Kill(pid))

    def wait_exited(self, pid: int) -> None:
        """Block until that shard was reaped."""
        self._wait_for(lambda packet: isinstance(packet, keeping.Exited) and packet.pid == pid)

    def forgotten(self, pid: int) -> None:
        """What follows from this shard's end has been done, and is in the record."""
        self._send(keeping.Forgotten(pid))

    def hold(self, name: str, descriptor: int) -> None:
        """Keep this for the next router, in place of what had this name; on_held() has the answer later."""
        self._send(keeping.Hold(name), [descriptor])

    def release(self, name: str) -> None:
        """Keep what has this name no more."""
        self._send(keeping.Release(name))

    def watch(self, path: str) -> None:
        """Have this link directory, pid file or ports file removed however the broker ends."""
        if path not in self._link_dirs:  # a reload may name the same file again
            self._link_dirs.append(path)
            self._send(keeping.Watch(path))

    def notify(self, address: str, text: str) -> None:
        """Send this to the service manager, which listens to the main process."""
        self._send(keeping.Notify(address, text))

    def formats(self) -> dict[str, int]:
        """Wait for the versions of what keeper and shards say to others, by the formats' names."""
        self._send(keeping.FormatsWanted())
        packet = self._wait_for(lambda packet: isinstance(packet, keeping.Formats))
        assert isinstance(packet, keeping.Formats)
        return packet.versions

    def make_room(self, command: Sequence[str]) -> NoReturn:
        """End this process, without the broker: the next router is run by this command."""
        self._send(keeping.Succeed(list(command)))
        os._exit(0)

    def taken_over(self) -> None:
        """The router that made room for us is not needed any more."""
        self._send(keeping.TakenOver())

    def renew(self, command: Sequence[str]) -> None:
        """Have the keeper become this program; `renewed` has the answer later."""
        self.renewed = None
        self._send(keeping.Renew(list(command)))

    # ---- what comes in

    def listen(self, on_signal: Callable[[int], None], on_exited: Callable[[int, int], None]) -> None:
        """Deliver signals (number) and deaths (pid, status of waitpid(2)) on the running loop, what waits first."""
        self._loop = asyncio.get_running_loop()
        self._on_signal, self._on_exited = on_signal, on_exited
        self._loop.add_reader(self._sock.fileno(), self._on_readable)
        self._on_readable()

    def close(self) -> None:
        """Deliver nothing more."""
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._loop = None

    def _on_readable(self) -> None:
        while True:
            while self._waiting and self._loop is not None:
                try:
                    self._deliver(self._waiting.popleft())
                except Exception:
                    if self._waiting and self._loop is not None:  # (nothing may come any more that would deliver them)
                        self._loop.call_soon(self._on_readable)
                    raise
            if self._loop is None or not self._read(socket.MSG_DONTWAIT):
                return

    def _deliver(self, packet: keeping.Packet) -> None:
        match packet:
            case keeping.Signalled(number):
                self._on_signal(number)
            case keeping.Exited(pid, status):
                self._on_exited(pid, status)
            case keeping.Held(name, is_held):
                self.on_held(name, is_held)
            case keeping.Renewed():
                self.renewed = packet

    def _read(self, flags: int = 0) -> bool:
        """Read one packet; False: none has come."""
        try:
            received = keeping.receive(self._sock, self._decoder, flags)
        except BlockingIOError:
            return False
        if received is None:
            self._leave()
        self._waiting.append(received[0])
        return True

    def _wait_for(self, is_wanted: Callable[[keeping.Packet], bool]) -> keeping.Packet:
        """Block until there is such a packet; others wait."""
        while True:
            for packet in self._waiting:
                if is_wanted(packet):
                    self._waiting.remove(packet)
                    if self._waiting and self._loop is not None:
                        self._loop.call_soon(self._on_readable)
                    return packet
            if not self._read():
                self._wait_until(select.POLLIN)

    def _send(self, packet: keeping.Packet, descriptors: Sequence[int] = ()) -> None:
        while True:
            try:
                keeping.send(self._sock, packet, list(descriptors))
            except BlockingIOError:
                self._wait_until(select.POLLOUT)
            except ConnectionError:
                self._leave()
            else:
                return

    def _wait_until(self, event: int) -> None:
        """Block until the socket has something, or room: the event loop has made it one that does not block."""
        poller = select.poll()
        poller.register(self._sock, event)
        poller.poll()
