"""A gateway's process that waits for its Boot while the one before still serves.

Other servers refuse two connections of one server, so the next gateway begins when the one before has ended, and what
they publish in between is lost. Whatever the next one has to read before that, it has read here. One that is not wanted
any more, or cannot be used, is killed. Not here: when it is wanted (`rolling`).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gnatswarm.router.supervision.shard_process import ShardProcess

if TYPE_CHECKING:
    from gnatswarm.router.supervision.shard_process import Parent
    from gnatswarm.shards.boundary.control import Boot, ControlError, ControlMessage


class Readiness(enum.Enum):
    """Of a process that stands by."""

    NONE = "there is none"
    PENDING = "it reads its program"
    READY = "it waits for Boot"


class Standby:
    """At most one process, which has heard nothing yet."""

    def __init__(
        self,
        parent: Parent,
        on_message: Callable[[ShardProcess, ControlMessage], None],
        on_ended: Callable[[ShardProcess, ControlError | None], None],
    ) -> None:
        self._parent = parent
        self._on_message = on_message
        self._on_ended = on_ended
        self._process: ShardProcess | None = None

    def launch(self, boot: Boot, command: Sequence[str]) -> None:
        """Start one for a Boot with these descriptors; none, where it cannot be started."""
        self.discard()
        with contextlib.suppress(OSError):  # `readiness` says so
            process = ShardProcess.launched(boot, self._parent, command)
            try:
                process.meet()
            except OSError:
                process.close()
                raise
            process.open_channel(self._on_message, self._on_ended)
            self._process = process

    @property
    def readiness(self) -> Readiness:
        """Whether there is one, and whether it has read its program."""
        if self._process is None:
            return Readiness.NONE
        return Readiness.READY if self._process.is_awake else Readiness.PENDING

    @property
    def boot_id(self) -> str:
        """Of the process that there is; "": none."""
        return "" if self._process is None else self._process.boot_id

    def take(self, boot: Boot, command: Sequence[str]) -> ShardProcess | None:
        """The process, with its Boot sent; None: there is none that was started for this one. It is the caller's."""
        process = self._process
        if process is None or not process.is_awake or not process.fits(boot, command):
            self.discard()
            return None
        self._process = None
        process.boot(boot)
        return process

    def on_exited(self, pid: int) -> None:
        """This process was reaped, whoever it was."""
        if self._process is not None and self._process.pid == pid:
            process, self._process = self._process, None
            process.on_exited()
            process.close()

    def discard(self) -> None:
        """End it; nothing where there is none."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.close()

    def close(self) -> None:
        """End it, and wait until it has been reaped."""
        process = self._process
        self.discard()
        if process is not None:
            process.wait_exit()
