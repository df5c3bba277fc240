"""Starts a shard's process: by the zygote if there is one, else by exec.

The two differ only in time: until the first INFO of two shards exec took 4.1 times the import of uvloop, the zygote
1.8 to 2.6. A dead zygote is not replaced: its cause of death may persist, and exec always works, so such a broker goes
on scaling and restarting. Called by the supervisor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gnatswarm.router.supervision.shard_process import ShardProcess, shard_command
from gnatswarm.router.supervision.zygote import ZygoteClient, ZygoteGone, prepare, take_prepared
from gnatswarm.shards.boundary import parentage
from gnatswarm.shards.boundary.control import Boot

log = logging.getLogger("gnatswarm.router")


class Launcher:
    """Starts processes; `command` replaces the command that runs a shard, and is always run by exec."""

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = list(command) if command else shard_command()
        self._zygote: ZygoteClient | None = None
        if not command and parentage.adopt_orphans():
            prepare()
            self._zygote = take_prepared()

    def remove_when_gone(self, link_dir: str) -> None:
        """Have the zygote remove this directory if this process dies without doing so."""
        if self._zygote is not None:
            self._zygote.remove_when_gone(link_dir)

    def launch(self, boot: Boot) -> ShardProcess:
        """Request the shard's process; call meet() afterwards. OSError when it cannot be started."""
        if self._zygote is not None:
            try:
                return ShardProcess(boot, self._zygote)
            except ZygoteGone as error:
                self._give_zygote_up(error)
        return ShardProcess(boot, self._command)

    def meet(self, process: ShardProcess) -> ShardProcess:
        """Wait until the process exists; if the zygote died, start another one by exec. OSError when that fails."""
        try:
            process.meet()
        except ZygoteGone as error:
            self._give_zygote_up(error)
            process.close()
            return self.launch(process.boot)
        except OSError:
            process.close()
            raise
        return process

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _give_zygote_up(self, error: ZygoteGone) -> None:
        if self._zygote is not None:
            log.warning("The process that forks shards is gone (%s): starting them by exec, which takes longer", error)
            self.close()
