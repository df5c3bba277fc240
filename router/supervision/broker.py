"""One broker as its router holds it: everything that outlives a shard, and the shards.

Listeners, the shared page, the runtime files, the launcher; no client data. It is made first, so that the readers
(`broker_view`) and the supervisor share it and need not know each other. Only the supervisor writes a shard's `state`.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gnatswarm.router.config import stats_place
from gnatswarm.router.config.cores import MAX_SHARDS, usable_cores
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listener_groups import ListenerGroups
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision import descriptors
from gnatswarm.router.supervision.launcher import Launcher
from gnatswarm.router.supervision.runtime_files import RuntimeFiles
from gnatswarm.router.supervision.supervision import ShardState
from gnatswarm.shards.boundary import linkdir
from gnatswarm.shards.boundary.page import Page

if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.listening.inherited import Inherited
    from gnatswarm.router.supervision.shard_process import ShardProcess
    from gnatswarm.shards.boundary.control import ControlMessage


class CannotStart(Exception):
    """The broker cannot be started with this configuration; the text is for the operator."""


class SupervisedShard:
    """One shard number with its state and its present process, if any."""

    def __init__(self, number: int, *, is_founder: bool) -> None:
        self.number = number
        self.state = ShardState(is_founder=is_founder)
        self.process: ShardProcess | None = None
        self.link_path = ""


class SupervisedBroker:
    """`command` runs a shard in place of ours (tests), `inherited` are sockets to serve on in place of our own.

    CannotStart when the constructor cannot make one of its parts; nothing stays behind then.
    """

    def __init__(
        self,
        options: Options,
        *,
        program: str,
        command: Sequence[str] | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        self.options = options
        self._program = program
        self.stats_dir = stats_place.choose(options, program)
        self.configured_us = 0  # when the options were last reloaded, µs since 1970; 0: never
        self.reload_failed_us = 0  # when the last reload failed, µs since 1970; 0: it did not, or there was none
        wanted = options.sharding.shards or usable_cores()
        if not 1 <= wanted <= MAX_SHARDS:
            raise CannotStart(f"shards must be 1..{MAX_SHARDS}, not {wanted}")
        if options.sharding.accept not in ("reuseport", "handoff"):
            raise CannotStart(f"accept must be 'reuseport' or 'handoff', not {options.sharding.accept!r}")
        self.is_handoff = options.sharding.accept == "handoff"
        shortage = descriptors.shortage(options, wanted)
        if shortage:
            raise CannotStart(shortage)
        self.wanted = wanted
        self.started_at = time.monotonic()
        # As long as nats-server's public key, because some clients' tests check it; ours is not a key.
        self.server_id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        self.server_name = options.server_name or self.server_id
        try:
            passed_in = inherited.monitoring if inherited is not None else None
            self.monitor_socket = passed_in or monitor_socket.listen(options)
            self.listener_groups = ListenerGroups(options, wanted, is_handoff=self.is_handoff, inherited=inherited)
        except ListenError as error:
            raise CannotStart(str(error)) from None
        self.launcher = Launcher(command)
        try:
            self.runtime_files = RuntimeFiles(
                options,
                port=self.listener_groups.clients.port,
                server_name=self.server_name,
                announce=self.launcher.remove_when_gone,
            )
        except linkdir.LinkDirectoryError as error:
            self.listener_groups.close()
            self.launcher.close()
            raise CannotStart(str(error)) from None
        self.page = Page.create()
        self.shards = [SupervisedShard(number, is_founder=True) for number in range(wanted)]
        self.is_serving = False  # every founder has been ready, and "Server is ready" is in the log
        self.is_leaving = False  # lame duck: no process is started any more

    @property
    def shard_pids(self) -> list[int]:
        """The pids of the shards that have a process."""
        return [shard.process.pid for shard in self.shards if shard.process is not None]

    def shard_of(self, process: ShardProcess) -> SupervisedShard | None:
        """The shard that has this process; None if the process was replaced meanwhile."""
        return next((shard for shard in self.shards if shard.process is process), None)

    def tell(self, shard: int, message: ControlMessage) -> bool:
        """Send this message to one shard. False when it has no process."""
        process = self.shards[shard].process if shard < len(self.shards) else None
        if process is None:
            return False
        process.send(message)
        return True

    def tell_all(self, message: ControlMessage) -> None:
        """Send this message to every shard that has a process."""
        for shard in self.shards:
            self.tell(shard.number, message)

    def adopt(self, options: Options) -> None:
        """Replace the options, for the router and for shards that start from now on."""
        self.options = options
        self.configured_us = time.time_ns() // 1000

    def write_ports_file(self) -> None:
        """Write it if the options name a directory for it. OSError when that fails."""
        where = self.options.ports_file_dir
        self.runtime_files.write_ports_file(where, self._program, self.listener_groups, self.monitor_socket)

    def close(self) -> None:
        """Release everything that is not a shard's: leaves no descriptor, socket file or directory of ours."""
        self.listener_groups.close()
        if self.monitor_socket is not None:
            self.monitor_socket.close()
        self.runtime_files.remove()
        self.page.close()
