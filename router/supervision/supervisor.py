"""The supervisor: carries out the decisions of `router.supervision.supervision`, for all shards of one broker.

Control messages, deaths, commands and time become events. Steering and the list of linked shards follow from the
states, and are published whenever they change. Other messages of shards go to the `Audience`; signals, operators and
reloads come in as commands (`broker_commands`). It starts its shards before it imports what only serving needs, so
that both happen at the same time.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from gnatswarm.router.config.cores import MAX_SHARDS
from gnatswarm.router.supervision import descriptors, gap, supervision
from gnatswarm.router.supervision.broker import CannotStart, SupervisedBroker, SupervisedShard
from gnatswarm.shards.boundary import control, linkdir, logs

if TYPE_CHECKING:
    import asyncio

    from gnatswarm.router.listening.handoff import Handoff
    from gnatswarm.router.supervision.audience import Audience
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.shard_process import ShardProcess

log = logging.getLogger("gnatswarm.router")

TICK_S = 0.25
# A tick that comes this much too late means that this process did not run.
LATE_S = 0.5


class Supervisor:
    """Supervises all shards of one broker: start(), meet(), in an event loop supervise(), wait_ended(); then close().

    start() raises CannotStart. `notifier` tells a service manager, `audience` gets what does not concern supervision.
    """

    def __init__(self, broker: SupervisedBroker, *, notifier: Notifier, audience: Audience) -> None:
        self._broker = broker
        self._notifier = notifier
        self._audience = audience
        self._handoff: Handoff | None = None
        self._linked: list[control.LinkedShard] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Future[int] | None = None
        self._last_tick = 0.0
        self._exit_code: int | None = None  # not None: the broker is stopping

    def start(self) -> None:
        """Start the founders (the first shards). Needs no event loop."""
        if self._broker.is_handoff:
            from gnatswarm.router.listening.handoff import Handoff

            self._handoff = Handoff(self._broker.listener_groups.clients.sockets[0], self._broker.page, self._accepting)
        for shard in self._broker.shards:
            self._deliver(shard, supervision.StartWanted())
        try:
            self._broker.runtime_files.write_pid_file(self._broker.options.pid_file)
        except OSError as error:
            raise CannotStart(f"Could not write pidfile: {self._broker.options.pid_file}: {error.strerror}") from None

    def meet(self) -> None:
        """Wait until the founders' processes exist."""
        for shard in self._broker.shards:
            if shard.process is not None:
                self._meet(shard)

    def supervise(self) -> None:
        """Begin to handle messages and deaths of shards, and time; needs a running loop."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        for shard in self._broker.shards:
            if shard.process is not None and not shard.process.is_open:
                shard.process.open_channel(self._on_message, self._on_channel_ended, self._on_exited)
        if self._handoff is not None:
            self._handoff.start()
        self._last_tick = time.monotonic()
        self._tick()
        self._publish()

    async def wait_ended(self) -> int:
        """Wait until the broker has stopped; returns the exit code."""
        assert self._done is not None
        return await self._done

    def close(self) -> None:
        """Release everything, the broker's too: leaves no process, descriptor, socket file or directory of ours."""
        self._broker.launcher.close()
        for shard in self._broker.shards:
            if shard.process is not None:
                shard.process.kill()
                shard.process.wait_exit()
                self._forget(shard)
        if self._handoff is not None:
            self._handoff.close()
        self._broker.close()
        self._notifier.close()

    # ---- events in ----

    def _on_message(self, process: ShardProcess, message: control.ControlMessage) -> None:
        shard = self._broker.shard_of(process)
        if shard is None:
            return
        if isinstance(message, control.Linked):
            shard.link_path = message.path
        if isinstance(message, supervision.ShardMessage):
            self._deliver(shard, message)
        else:
            self._audience.on_message(shard.number, message)

    def _on_channel_ended(self, process: ShardProcess, error: control.ControlError | None) -> None:
        shard = self._broker.shard_of(process)
        if shard is not None:
            self._deliver(shard, supervision.ChannelEnded("" if error is None else str(error)))

    def _on_exited(self, process: ShardProcess, reason: str) -> None:
        # It is reaped, but its last messages may be unread: a Fatal among them is the real reason.
        process.read_what_is_left()
        shard = self._broker.shard_of(process)
        if shard is not None:
            self._deliver(shard, supervision.Exited(reason))

    def _tick(self) -> None:
        assert self._loop is not None
        now = time.monotonic()
        gap_s = now - self._last_tick - TICK_S
        self._last_tick = now
        for shard in list(self._broker.shards):
            if gap_s > LATE_S:
                self._deliver(shard, supervision.Late(gap_s))
            self._deliver(shard, supervision.TimePassed())
        logs.rotate_when_full()
        self._mend()
        self._notify()
        self._loop.call_later(TICK_S, self._tick)

    def _mend(self) -> None:
        """Restore our directory or files in it, which a cleaner of old files may have removed."""
        if self._broker.runtime_files.mend():
            self._audience.on_operator_socket()
        linked = [shard for shard in self._broker.shards if shard.state.is_linked and not shard.state.has_drained]
        numbers = {shard.link_path: shard.number for shard in linked}
        for path in self._broker.runtime_files.missing_links(list(numbers)):
            self._broker.tell(numbers[path], control.ListenAnew())  # the shard logs it

    # ---- decisions, and what follows from them ----

    def _deliver(self, shard: SupervisedShard, event: supervision.Event) -> None:
        before = shard.state
        shard.state, actions = supervision.step(shard.state, event, time.monotonic())
        for action in actions:
            self._carry_out(shard, action)
        if shard.state != before:
            if shard.state.phase is not before.phase:
                log.debug("Shard %d is %s", shard.number, shard.state.phase.value)
            self._publish()

    def _carry_out(self, shard: SupervisedShard, action: supervision.Action) -> None:
        if isinstance(action, supervision.Send):
            if shard.process is not None:
                shard.process.send(action.message)
        elif isinstance(action, supervision.Kill):
            if shard.process is not None:
                shard.process.kill()
        elif isinstance(action, supervision.Forget):
            self._forget(shard)
        elif isinstance(action, supervision.Spawn):
            self._spawn(shard)
        elif isinstance(action, supervision.Report):
            getattr(log, action.level)("Shard %d %s", shard.number, action.text)
        elif isinstance(action, supervision.StopRouter):
            log.critical("Shard %d %s", shard.number, action.reason)
            self.stop(1)

    def _spawn(self, shard: SupervisedShard) -> None:
        if self._broker.is_leaving or self._exit_code is not None:
            # The listeners are closed already: a new process would get no clients.
            self._deliver(shard, supervision.StopWanted())
            self._deliver(shard, supervision.Exited("not started again"))
            return
        self._mend()  # or it could not make its link socket
        number = shard.number
        boot_id = os.urandom(8).hex()
        boot = control.Boot(
            version=control.CONTROL_VERSION,
            shard=number,
            shards=self._broker.wanted,
            server_id=self._broker.server_id,
            server_name=self._broker.server_name,
            boot_id=boot_id,
            options=self._broker.options,
            host=self._broker.options.host,
            port=self._broker.listener_groups.clients.port,
            listener_fds=self._broker.listener_groups.client_fds(number),
            websocket_fds=self._broker.listener_groups.websocket_fds(number),
            handoff_fd=self._handoff.shard_fd(number) if self._handoff else -1,
            page_fd=self._broker.page.fd,
            link_dir=self._broker.runtime_files.link_dir,
            created_us=self._broker.page.created_us,
            router_pid=os.getpid(),
            stats_dir=self._broker.stats_dir,
        )
        shard.link_path = ""
        try:
            shard.process = self._broker.launcher.launch(boot)
        except OSError as error:
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {error.strerror}"))
            return
        if self._loop is not None:
            self._meet(shard)

    def _meet(self, shard: SupervisedShard) -> None:
        """Wait until the process that was requested exists, or handle its failure."""
        assert shard.process is not None
        try:
            process = shard.process = self._broker.launcher.meet(shard.process)
        except OSError as error:
            shard.process = None
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {error.strerror}"))
            return
        self._broker.page.note_boot(shard.number, process.pid)
        log.debug("Shard %d is process %d, boot id %s", shard.number, process.pid, process.boot.boot_id)
        if self._loop is not None:
            process.open_channel(self._on_message, self._on_channel_ended, self._on_exited)

    def _forget(self, shard: SupervisedShard) -> None:
        """Clean up after a reaped process: exactly once for each one started."""
        process, shard.process = shard.process, None
        if process is None:
            return
        if shard.link_path:
            linkdir.remove_socket(shard.link_path)
            shard.link_path = ""
        process.close()
        if self._broker.stats_dir:
            gap.note_gap(self._broker.page, process, self._broker.stats_dir, shard.state.last_reason)
        gone = self._broker.page.forget_connections(shard.number)
        if gone:
            log.debug("Shard %d took %d connections with it", shard.number, gone)
        if self._handoff is not None:
            self._handoff.take_back(shard.number)
        self._audience.on_shard_gone(shard.number)

    def _accepting(self) -> list[int]:
        """Shards that get new connections; those without descriptor headroom only if no shard has any."""
        accepting = [shard for shard in self._broker.shards if shard.state.is_accepting]
        return [shard.number for shard in [one for one in accepting if one.state.has_headroom] or accepting]

    def _publish(self) -> None:
        """Publish steering and the list of linked shards, where they no longer match the states."""
        linked = [
            control.LinkedShard(shard.number, shard.process.boot.boot_id, shard.link_path)
            for shard in self._broker.shards
            if shard.state.is_linked and shard.process is not None
        ]
        if linked != self._linked:
            self._linked = linked
            for shard in self._broker.shards:
                if shard.state.is_linked and shard.process is not None:
                    shard.process.send(control.LinkedShards(linked))
        self._check_ready()
        if self._broker.is_serving:
            self._steer()
        self._notify()
        self._check_done()

    def _notify(self) -> None:
        self._notifier.observe(
            [shard.state for shard in self._broker.shards],
            is_serving=self._broker.is_serving,
            is_leaving=self._broker.is_leaving or self._exit_code is not None,
            connections=self._broker.page.connections,
        )

    def _check_done(self) -> None:
        if self._done is None or self._done.done():
            return
        if all(shard.state.phase is supervision.Phase.STOPPED for shard in self._broker.shards):
            if self._exit_code is not None:
                self._done.set_result(self._exit_code)
            elif self._broker.is_leaving:
                log.info("Lame duck mode: every shard has left")
                self._done.set_result(0)

    def _check_ready(self) -> None:
        if self._broker.is_serving or self._exit_code is not None or self._broker.is_leaving:
            return
        if all(shard.state.phase is supervision.Phase.READY for shard in self._broker.shards if shard.state.is_founder):
            self._broker.is_serving = True
            self._steer()
            steering = self._broker.listener_groups.steering
            if not self._broker.is_handoff and not steering.works:
                log.warning(
                    "Cannot steer connections (%s): the kernel spreads them over all shards by hash",
                    steering.error.strerror if steering.error else "",
                )
            try:
                self._broker.write_ports_file()
            except OSError as error:
                log.error("Error writing ports file to %s: %s", self._broker.options.ports_file_dir, error)
            log.info("Server is ready")

    def _steer(self) -> None:
        accepting = self._accepting()
        if self._handoff is not None:
            self._handoff.shards_changed()
        # If no shard accepts, connections wait in the queues of those that will come back.
        wanted = [shard.number for shard in self._broker.shards if shard.state.is_wanted]
        self._broker.listener_groups.steer(accepting or wanted)

    # ---- commands of operators ----

    def stop(self, exit_code: int) -> None:
        """Stop every shard within a bounded time; a second call kills those that have not stopped."""
        if self._exit_code is not None:
            for shard in self._broker.shards:
                if shard.process is not None:
                    shard.process.kill()
            return
        self._exit_code = exit_code
        log.info("Initiating Shutdown...")
        self._audience.on_stopping()
        # No new connections; shards still hold copies of the sockets until they exit.
        if self._handoff is not None:
            self._handoff.close()
            self._handoff = None
        self._broker.listener_groups.close()
        for shard in self._broker.shards:
            self._deliver(shard, supervision.StopWanted())
        self._publish()

    def become_lame_duck(self) -> None:
        """Lame duck mode: no new connections, clients are told to reconnect and closed over time, then exit 0."""
        if self._broker.is_leaving or self._exit_code is not None:
            return
        self._broker.is_leaving = True
        limits = self._broker.options.limits
        log.info("Entering lame duck mode, stop accepting new clients")
        self._audience.on_lame_duck()
        if self._handoff is not None:
            self._handoff.close()
            self._handoff = None
        self._broker.listener_groups.close()
        message = control.LameDuck(limits.lame_duck_grace_s, limits.lame_duck_duration_s)
        for shard in self._broker.shards:
            if shard.state.has_process:
                self._deliver(shard, supervision.LeaveWanted(message))
            else:
                self._deliver(shard, supervision.StopWanted())
        self._publish()

    def scale(self, wanted: int) -> str:
        """Begin to run this many shards; "" or why not. New ones take connections as soon as they are ready."""
        if not 1 <= wanted <= MAX_SHARDS:
            return f"shards must be 1..{MAX_SHARDS}, not {wanted}"
        if self._broker.is_leaving or self._exit_code is not None:
            return "the broker is shutting down"
        if not self._broker.is_serving:
            return "the broker is still starting"
        shortage = descriptors.shortage(self._broker.options, wanted)
        if shortage:
            return shortage
        try:
            self._broker.listener_groups.grow_to(wanted)
        except OSError as error:
            return f"cannot open another listener: {error.strerror}"
        log.info("Scaling from %d to %d shards", self._broker.wanted, wanted)
        self._broker.wanted = wanted
        while len(self._broker.shards) < wanted:
            self._broker.shards.append(SupervisedShard(len(self._broker.shards), is_founder=False))
        leave = control.Drain(self._broker.options.limits.lame_duck_grace_s)
        for shard in self._broker.shards:
            if shard.number < wanted:
                self._deliver(shard, supervision.StartWanted())
            else:
                self._deliver(shard, supervision.LeaveWanted(leave))
        # Connections that wait in a closed listener are lost; few: its shard accepted until the queue was empty.
        self._broker.listener_groups.shrink_to(wanted)
        return ""

    def kill_shard(self, number: int) -> None:
        """Kill its process as a crash would, without counting it as a crash. Nothing where it has none."""
        self._deliver(self._broker.shards[number], supervision.KillWanted())
