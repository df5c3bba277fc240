"""Launching: a shard's process by the zygote where there is one, by exec where there is none.

The two differ in time alone. A zygote that is found dead is not replaced: whatever killed it may do so again, and exec
always works. Called by the supervisor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from router.shard_process import ShardProcess, shard_command
from router.zygote import Zygote, ZygoteGone, prepare, take_prepared
from shards import parentage
from shards.control import Boot

log = logging.getLogger("gnatswarm.router")


class Launcher:
    """`command` runs a shard in place of ours, always by exec."""

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = list(command) if command else shard_command()
        self._zygote: Zygote | None = None
        if not command and parentage.adopt_orphans():
            prepare()
            self._zygote = take_prepared()

    def remove_when_gone(self, link_dir: str) -> None:
        """Should this process die without removing this directory, the zygote does it."""
        if self._zygote is not None:
            self._zygote.remove_when_gone(link_dir)

    def launch(self, boot: Boot) -> ShardProcess:
        """Ask for the shard's process; meet() follows. OSError when there cannot be one."""
        if self._zygote is not None:
            try:
                return ShardProcess(boot, self._zygote)
            except ZygoteGone as error:
                self._give_zygote_up(error)
        return ShardProcess(boot, self._command)

    def meet(self, process: ShardProcess) -> ShardProcess:
        """Wait until the process is there; another one, if the zygote died over it. OSError when there is none."""
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
