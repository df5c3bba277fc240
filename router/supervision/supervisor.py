"""The supervisor: carries out the decisions of `router.supervision.supervision`, for all shards of one broker.

Control messages, deaths, commands and time become events. Steering and the list of linked shards follow from the
states, and are published whenever they change. Other messages of shards go to the `Audience`; signals, operators and
reloads come in as commands (`broker_commands`). It starts its shards before it imports what only serving needs, so
that both happen at the same time; or it takes over those of a router that has died, and finishes what that had begun.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from gnatswarm.router.supervision import descriptors, supervision
from gnatswarm.router.supervision.broker import SupervisedBroker, SupervisedShard, time_to_move_s
from gnatswarm.router.supervision.opening import CannotStart, why_most
from gnatswarm.router.supervision.relays import RelayKeeping
from gnatswarm.router.supervision.shard_process import ShardProcess, exit_text
from gnatswarm.router.supervision.standby import Readiness, Standby
from gnatswarm.shards.boundary import control, linkdir, logs

if TYPE_CHECKING:
    import asyncio

    from gnatswarm.router.listening.handoff import Handoff
    from gnatswarm.router.supervision.audience import Audience
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.record import Left, RollingRecord

log = logging.getLogger("gnatswarm.router")

# Behind the command of another version: run a shard (`gnatswarm_keeper.py`).
SHARD_COMMAND = "_shard"

TICK_S = 0.25
# Shards that stop have accepted who waits by then, or are hung. Others wait for these for longer (`shards.stopping`).
REFUSE_ALL_AFTER_S = 0.5
# A tick that comes this much too late means that this process did not run.
LATE_S = 0.5
# In lame duck mode, where the grace takes all of its time.
LEAST_CLOSING_S = 1.0


class Supervisor:
    """Supervises all shards of one broker: start(), meet(), in an event loop supervise(), wait_ended(); then close().

    take_over() stands for start() and meet() where a router has died. start() raises CannotStart. `notifier` tells a
    service manager, `audience` gets what does not concern supervision.
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
        self._next_tick: asyncio.TimerHandle | None = None
        self._exit_code: int | None = None  # not None: the broker is stopping
        self._relays = RelayKeeping(broker)
        self._standby = Standby(broker.keeper, self._on_message, self._on_channel_ended)
        self._left_exits: list[tuple[int, int]] = []  # taken over: processes that have ended, with their status

    def start(self) -> None:
        """Start the founders (the first shards). Needs no event loop."""
        self._make_handoff()
        for shard in self._broker.members:
            self._deliver(shard, supervision.StartWanted())
        try:
            self._broker.runtime_files.write_pid_file(self._broker.options.pid_file)
        except OSError as error:
            raise CannotStart(f"Could not write pidfile: {self._broker.options.pid_file}: {error.strerror}") from None

    def _make_handoff(self) -> None:
        if self._broker.is_handoff:
            from gnatswarm.router.listening.handoff import Handoff

            clients, page = self._broker.listener_groups.clients, self._broker.page
            self._handoff = Handoff(clients.sockets[0], page, self._accepting, may_refuse=clients.may_refuse)

    def take_over(self, left: Left) -> None:
        """Take over the shards of a router that has died. Needs no event loop; the rest is done by supervise()."""
        broker, now = self._broker, time.monotonic()
        if broker.is_leaving:
            broker.listener_groups.close()
        else:
            self._make_handoff()
            if self._handoff is not None:
                self._handoff.take_over(left.held)
        children = {child.pid: child for child in left.children}
        for shard, record in zip(broker.members, left.record.members, strict=True):
            child = children.pop(record.pid, None)
            status = None if child is None else child.status
            exit_code = None if status is None else os.waitstatus_to_exitcode(status)
            shard.state, actions = supervision.taken_over(shard.state, now, exit_code)
            if child is None or not shard.state.has_process:
                continue
            shard.process = ShardProcess.taken_over(
                broker.keeper, child.pid, shard=shard.number, boot_id=record.boot_id, booted_us=record.booted_us
            )
            if status is not None:
                self._left_exits.append((child.pid, status))
            for action in actions:
                self._carry_out(shard, action)
        for relay in left.record.relays:
            child = children.pop(relay.pid, None)
            if child is not None and child.status is not None:
                broker.keeper.forgotten(child.pid)
            elif child is not None:
                self._relays.add(
                    ShardProcess.taken_over(
                        broker.keeper, child.pid, shard=relay.shard, boot_id=relay.boot_id, booted_us=relay.booted_us
                    )
                )
        for child in children.values():  # started just before the router died: nobody is connected there
            broker.keeper.kill(child.pid)
            if child.status is not None:
                broker.keeper.forgotten(child.pid)
        if children:
            self._remove_strange_sockets()

    def _finish_what_was_begun(self) -> None:
        """The dead router may have been in the middle of something."""
        broker = self._broker
        for pid, status in self._left_exits:
            self._on_exited(pid, status)
        for shard in broker.members:
            if shard.process is None and shard.state.has_process:
                self._deliver(shard, supervision.Exited("the router died before it was started"))
        broker.tell_all(control.ReopenLog())
        if broker.is_leaving:
            self._dismiss()
        else:
            self._align()

    def meet(self) -> None:
        """Wait until the founders' processes exist. One that could not be started may have been requested again."""
        while requested := [one for one in self._broker.members if one.process is not None and one.process.pid == 0]:
            for shard in requested:  # (the keeper answers in this order)
                self._meet(shard)

    def supervise(self) -> None:
        """Begin to handle messages and deaths of shards, and time; needs a running loop."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        for shard in self._broker.members:
            if shard.process is not None and not shard.process.is_open:
                shard.process.open_channel(self._on_message, self._on_channel_ended)
        for relay in self._broker.relays:
            relay.process.open_channel(self._on_message, self._on_channel_ended)
        if self._handoff is not None:
            self._handoff.start()
        self._last_tick = time.monotonic()
        if self._broker.left is not None:
            self._finish_what_was_begun()
        self._tick()
        self._publish()
        self._remember()

    async def wait_ended(self) -> int:
        """Wait until the broker has stopped; returns the exit code."""
        assert self._done is not None
        return await self._done

    def stop_ticking(self) -> None:
        """Handle time no more: what belongs to the broker is about to be closed, while the loop still runs."""
        if self._next_tick is not None:
            self._next_tick.cancel()

    def close(self) -> None:
        """Release everything, the broker's too: leaves no process, descriptor, socket file or directory of ours."""
        self._broker.keeper.close()
        self._relays.close()
        self._standby.close()
        for shard in self._broker.members:
            if shard.process is not None:
                with contextlib.suppress(OSError):
                    shard.process.meet()  # the start failed before it existed
                shard.process.kill()
                shard.process.wait_exit()
                self._forget(shard)
        if self._handoff is not None:
            self._handoff.close()
        self._broker.gaps.close(self._broker.stats_dir)
        self._broker.close()

    # ---- events in ----

    def _on_message(self, process: ShardProcess, message: control.ControlMessage) -> None:
        shard = self._broker.shard_of(process)
        if shard is None:
            relay = self._relays.of(process)
            if relay is not None:
                self._relays.on_message(relay, message)
            return
        if isinstance(message, control.Linked):
            shard.link_path = message.path
        elif isinstance(message, control.Resumed) and message.generation != self._broker.generation:
            for part in control.users_in_parts(self._broker.options.users):
                process.send(part)
            process.send(control.reload_of(self._broker.options, self._broker.generation))
        if isinstance(message, control.ClusterNews):
            self._broker.cluster_news = message
            for one in self._broker.shards:
                if one.process is not None:
                    one.process.send(message)
        elif isinstance(message, supervision.ShardMessage):
            self._deliver(shard, message)
            relay = self._relays.of(process)
            if relay is not None:
                self._relays.on_message(relay, message)
        else:
            self._audience.on_message(shard.number, message)

    def _on_channel_ended(self, process: ShardProcess, error: control.ControlError | None) -> None:
        shard = self._broker.shard_of(process)
        if shard is not None:
            self._deliver(shard, supervision.ChannelEnded("" if error is None else str(error)))

    def on_exited(self, pid: int, status: int) -> None:
        """The keeper has reaped this process, with this status of waitpid(2)."""
        self._on_exited(pid, status)

    def _on_exited(self, pid: int, status: int) -> None:
        members = self._broker.members
        shard = next((one for one in members if one.process is not None and one.process.pid == pid), None)
        try:
            if shard is not None and shard.process is not None:
                # Its last messages may be unread: a Fatal among them is the real reason.
                shard.process.on_exited()
                self._deliver(shard, supervision.Exited(exit_text(status)))
            elif self._relays.on_exited(pid, exit_text(status)):
                self._remember()
                self._check_done()
            else:
                self._standby.on_exited(pid)
                self._remove_strange_sockets()
        finally:
            self._broker.keeper.forgotten(pid)  # after the record says what follows

    def _tick(self) -> None:
        assert self._loop is not None
        now = time.monotonic()
        gap_s = now - self._last_tick - TICK_S
        self._last_tick = now
        self._next_tick = self._loop.call_later(TICK_S, self._tick)  # first: whatever fails below, there is a next one
        with contextlib.ExitStack() as rest:
            rest.callback(self._keep_house)
            for shard in reversed(self._broker.members):
                rest.callback(self._deliver, shard, supervision.TimePassed(self._computes(shard)))
                if gap_s > LATE_S:
                    rest.callback(self._deliver, shard, supervision.Late(gap_s))

    @staticmethod
    def _computes(shard: SupervisedShard) -> bool:
        """Whether it does much, and answers nothing."""
        process, state = shard.process, shard.state
        return state.is_suspect and process is not None and process.has_computed(state.ping_seq)

    def _keep_house(self) -> None:
        """What beside the shards has to be looked after again and again, each whatever becomes of the others."""
        broker = self._broker
        with contextlib.ExitStack() as rest:  # (the last one is called first)
            rest.callback(self._notify)
            rest.callback(self._hold)
            rest.callback(broker.holdings.catch_up)
            rest.callback(self._mend)
            rest.callback(broker.gaps.write, broker.stats_dir)
            rest.callback(self._relays.on_tick)
            rest.callback(logs.rotate_when_full)
            rest.callback(broker.page.settle_connections)

    def _mend(self) -> None:
        """Restore our directory or files in it, which a cleaner of old files may have removed."""
        if self._broker.runtime_files.mend():
            self._audience.on_operator_socket()
        linked = [shard for shard in self._broker.members if shard.state.is_linked and not shard.state.has_drained]
        listening = {shard.link_path: shard for shard in linked}
        doors = {path: not shard.is_gateway for path, shard in listening.items()}
        for path in self._broker.runtime_files.missing_links(doors):
            process = listening[path].process
            if process is not None:
                process.send(control.ListenAnew())  # the shard logs it

    # ---- decisions, and what follows from them ----

    def _deliver(self, shard: SupervisedShard, event: supervision.Event) -> None:
        before = shard.state
        shard.state, actions = supervision.step(shard.state, event, time.monotonic())
        with contextlib.ExitStack() as rest:  # where one thing fails, the others are done all the same
            rest.callback(self._on_changed, shard, before)
            for action in reversed(actions):
                rest.callback(self._carry_out, shard, action)

    def _on_changed(self, shard: SupervisedShard, before: supervision.ShardState) -> None:
        if shard.state != before:
            if supervision.lasting(shard.state) != supervision.lasting(before):
                self._remember()
            if shard.state.phase is not before.phase:
                log.debug("%s is %s", shard.name, shard.state.phase.value)
            self._publish()

    def _carry_out(self, shard: SupervisedShard, action: supervision.Action) -> None:
        if isinstance(action, supervision.Send):
            if shard.process is not None:
                shard.process.send(action.message)
        elif isinstance(action, supervision.Kill):
            if shard.process is not None:
                shard.process.kill()
            else:  # its start has failed half way: nobody else would say that it has ended
                self._deliver(shard, supervision.Exited("it has no process"))
        elif isinstance(action, supervision.Forget):
            self._forget(shard)
        elif isinstance(action, supervision.Release):
            if shard.process is not None:
                self._relays.add(shard.process)
            self._forget(shard)
        elif isinstance(action, supervision.Spawn):
            self._spawn(shard)
        elif isinstance(action, supervision.Report):
            getattr(log, action.level)("%s %s", shard.name, action.text)
        elif isinstance(action, supervision.StopRouter):
            log.critical("%s %s", shard.name, action.reason)
            self.stop(1)

    def _spawn(self, shard: SupervisedShard) -> None:
        if self._broker.is_leaving or self._exit_code is not None:
            # The listeners are closed already: a new process would get no clients.
            self._deliver(shard, supervision.StopWanted())
            self._deliver(shard, supervision.Exited("not started again"))
            return
        self._mend()  # or it could not make its link socket
        try:
            handoff_fd = self._handoff.shard_fd(shard.number) if self._handoff and not shard.is_gateway else -1
        except OSError as error:
            self._deliver(shard, supervision.SpawnFailed(f"cannot make its hand-off queue: {error.strerror}"))
            return
        shard.link_path = ""
        prepared = self._standby.boot_id if shard.is_gateway else ""
        boot = self._boot(shard, prepared or os.urandom(8).hex(), handoff_fd)
        command = self._broker.command
        try:
            process = self._standby.take(boot, command) if prepared else None
            shard.process = process or ShardProcess.start(boot, self._broker.keeper, command)
        except (OSError, control.ControlError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {why}"))
            return
        if self._loop is not None:
            self._meet(shard)

    def _boot(self, shard: SupervisedShard, boot_id: str, handoff_fd: int = -1) -> control.Boot:
        """What a process of this shard is told first."""
        number = shard.number
        websocket = self._broker.listener_groups.websocket
        return control.Boot(
            version=control.CONTROL_VERSION,
            shard=number,
            shards=self._broker.wanted,
            server_id=self._broker.server_id,
            server_name=self._broker.server_name,
            boot_id=boot_id,
            options=self._broker.options,
            host=self._broker.options.host,
            port=self._broker.listener_groups.clients.port,
            listener_fds=[] if shard.is_gateway else self._broker.listener_groups.client_fds(number),
            websocket_fds=[] if shard.is_gateway else self._broker.listener_groups.websocket_fds(number),
            may_refuse=self._broker.listener_groups.clients.may_refuse,
            handoff_fd=handoff_fd,
            page_fd=self._broker.page.fd,
            link_dir=self._broker.runtime_files.link_dir,
            created_us=self._broker.page.created_us,
            keeper_pid=self._broker.pid,
            stats_dir=self._broker.stats_dir,
            is_gateway=shard.is_gateway,
            generation=self._broker.generation,
            server_ports=self._server_ports() if shard.is_gateway else {},
            websocket_port=websocket.port if websocket is not None else 0,
            cluster=self._broker.cluster_news,
        )

    def _server_ports(self) -> dict[str, control.ServerPort]:
        return {
            kind: control.ServerPort(listeners.sockets[0].fileno(), listeners.host, listeners.port)
            for kind, listeners in self._broker.listener_groups.servers.items()
        }

    def _meet(self, shard: SupervisedShard) -> None:
        """Wait until the process that was requested exists, or handle its failure."""
        assert shard.process is not None
        process = shard.process
        try:
            process.meet()
        except OSError as error:
            process.close()
            shard.process = None
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {error.strerror}"))
            return
        self._broker.page.note_boot(shard.number, process.pid)
        log.debug("%s is process %d, boot id %s", shard.name, process.pid, process.boot_id)
        self._hold()
        if self._loop is not None and not process.is_open:
            process.open_channel(self._on_message, self._on_channel_ended)

    def _forget(self, shard: SupervisedShard) -> None:
        """Clean up after a shard whose process was reaped, or is a relay now: exactly once for each one started."""
        process, shard.process = shard.process, None
        if process is None:
            return
        if shard.link_path:
            linkdir.remove_sockets(shard.link_path)
            shard.link_path = ""
        else:
            self._remove_strange_sockets()
        if self._relays.of(process) is None:
            process.close()
        if self._broker.stats_dir:
            self._broker.gaps.note(
                self._broker.page, process, self._broker.server_id, self._broker.stats_dir, shard.state.last_reason
            )
        gone = self._broker.page.forget_connections(shard.number)
        if gone:
            log.debug("Shard %d took %d connections with it", shard.number, gone)
        if self._handoff is not None and not shard.is_gateway:
            self._handoff.take_back(shard.number)
        self._audience.on_shard_gone(shard.number)

    def _remove_strange_sockets(self) -> None:
        """Of processes that ended before this router, or one before it, had heard where they listen."""
        boot_ids = {shard.process.boot_id for shard in self._broker.members if shard.process is not None}
        linkdir.remove_sockets_but(self._broker.runtime_files.link_dir, boot_ids)

    def _accepting(self) -> list[int]:
        """Shards that get new connections; those without descriptor headroom only if no shard has any."""
        accepting = [shard for shard in self._broker.shards if shard.state.is_accepting]
        rolling = self._broker.rolling
        if rolling is not None:
            # Those that have been replaced, once there are any: so who cannot move has to connect again only once.
            accepting = [shard for shard in accepting if rolling.is_replaced(shard.number, shard.process)] or accepting
        return [shard.number for shard in [one for one in accepting if one.state.has_headroom] or accepting]

    def _publish(self) -> None:
        """Publish steering and the list of linked shards, where they no longer match the states."""
        linked = [
            control.LinkedShard(shard.number, shard.process.boot_id, shard.link_path)
            for shard in self._broker.members
            if shard.state.is_linked and shard.process is not None
        ]
        # (Those that stop together carry out what they have sent each other: `shards.stopping`.)
        if linked != self._linked and self._exit_code is None:
            self._linked = linked
            for shard in self._broker.members:
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
        gateway = self._broker.gateway
        if all(shard.state.phase is supervision.Phase.STOPPED for shard in self._broker.shards):
            if gateway is not None and gateway.state.phase is not supervision.Phase.STOPPED:
                # The last to leave: until then other servers reach our clients.
                if self._broker.is_leaving and gateway.state.phase is not supervision.Phase.STOPPING:
                    self._deliver(gateway, supervision.StopWanted())
                return
            if self._broker.relays and (self._exit_code is not None or self._broker.is_leaving):
                self._relays.stop()  # the last one that ends calls this again
                return
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
            self._broker.begin_record(self._lanes())
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

    def _lanes(self) -> dict[str, int]:
        return {} if self._handoff is None else self._handoff.holdings()

    def _hold(self) -> None:
        """Descriptors may have changed that another router will need."""
        self._broker.hold(self._lanes())

    def _remember(self) -> None:
        """Give the keeper the record for another router."""
        self._broker.remember()

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
            self._relays.kill()
            for shard in self._broker.members:
                if shard.process is not None:
                    shard.process.kill()
            return
        self._exit_code = exit_code
        self._broker.is_stopping = True
        self._standby.discard()
        log.info("Initiating Shutdown...")
        try:
            self._audience.on_stopping()
        finally:  # the shards stop, whatever else could not be told
            self._stop_members()

    @property
    def _listening(self) -> list[int]:
        return [shard.number for shard in self._broker.shards if shard.state.is_listening]

    def _stop_members(self) -> None:
        # No new connections, before any shard closes its clients: they would come back to another one. But those that
        # wait in the queues are accepted first, by shards that accept.
        listening = self._listening
        if self._handoff is not None:
            self._handoff.end(listening)
        for shard in self._broker.members:
            self._deliver(shard, supervision.StopWanted())
        self._broker.listener_groups.refuse(but=listening)
        if self._loop is not None and listening:
            self._loop.call_later(REFUSE_ALL_AFTER_S, self._broker.listener_groups.refuse)
        self._hold()
        self._publish()

    def become_lame_duck(self) -> None:
        """Lame duck mode: no new connections, clients are told to reconnect and closed over time, then exit 0."""
        if self._broker.is_leaving or self._exit_code is not None:
            return
        self._broker.is_leaving = True
        self._standby.discard()  # it holds the ports of other servers
        self._remember()
        log.info("Entering lame duck mode, stop accepting new clients")
        try:
            self._audience.on_lame_duck()
        finally:
            self._dismiss_members()

    def _dismiss_members(self) -> None:
        """Refuse new connections, and have every shard leave."""
        if self._handoff is not None:
            self._handoff.end(self._listening)
        self._broker.listener_groups.close()
        self._hold()
        self._dismiss()
        self._publish()

    def _dismiss(self) -> None:
        """Have every shard leave; those that were told already go on with it."""
        limits = self._broker.options.limits
        grace_s = limits.lame_duck_grace_s  # is a part of the duration, as in nats-server
        message = control.LameDuck(grace_s, max(limits.lame_duck_duration_s - grace_s, LEAST_CLOSING_S))
        for shard in self._broker.shards:
            if shard.state.has_process:
                self._deliver(shard, supervision.LeaveWanted(message))
            else:
                self._deliver(shard, supervision.StopWanted())
        gateway = self._broker.gateway
        if gateway is not None and gateway.process is not None:
            gateway.process.send(message)  # it stays, and tells other servers

    def scale(self, wanted: int) -> str:
        """Begin to run this many shards; "" or why not. New ones take connections as soon as they are ready."""
        if not 1 <= wanted <= self._broker.most_shards:
            return f"shards must be 1..{self._broker.most_shards}, not {wanted}" + why_most(self._broker.options)
        if self._broker.is_leaving or self._exit_code is not None:
            return "the broker is shutting down"
        if not self._broker.is_serving:
            return "the broker is still starting"
        if self._broker.rolling is not None:
            return "a restart is under way"
        if self._would_cut(wanted):
            return f"no shard below {wanted} serves now, so clients could not move there: try again when one does"
        shortage = descriptors.shortage(self._broker.options, wanted)
        if shortage:
            return shortage
        try:
            self._broker.listener_groups.grow_to(wanted)
        except OSError as error:
            self._broker.listener_groups.shrink_to(self._broker.wanted)  # nobody would accept on those that are open
            return f"cannot open another listener: {error.strerror}"
        log.info("Scaling from %d to %d shards", self._broker.wanted, wanted)
        self._want(wanted)
        # Connections that wait in a closed listener are lost; few: its shard accepted until the queue was empty.
        self._broker.listener_groups.shrink_to(wanted)
        self._hold()
        return ""

    def _would_cut(self, wanted: int) -> bool:
        """Whether shards that serve would leave, and none of those that stay could take their clients."""
        serving = [shard.number for shard in self._broker.shards if shard.state.is_accepting]
        return bool(serving) and min(serving) >= wanted

    def _want(self, wanted: int, leave: control.Drain | None = None) -> None:
        self._broker.wanted = wanted
        self._hold()
        self._align(leave)

    def begin_rolling(self, rolling: RollingRecord) -> str:
        """Start one shard more than wanted, and remember the plan; "" or why not."""
        wanted = rolling.shards + 1
        shortage = descriptors.shortage(self._broker.options, wanted)
        if shortage:
            return shortage
        log.info("Replacing %d shards, one after another", rolling.shards)
        self._broker.rolling = rolling
        self._broker.command = [*rolling.command, SHARD_COMMAND] if rolling.command else self._broker.own_command
        self._broker.listener_groups.grow_if_steered(wanted)
        self._want(wanted)
        return ""

    def replace(self, number: int, within_s: float, to: list[int], relay_s: float) -> None:
        """Have this shard move its clients to those in `to` and end, within that time; its next process follows."""
        shard = self._broker.shards[number]
        self._deliver(shard, supervision.LeaveWanted(control.Drain(within_s, to, relay_s)))
        self._deliver(shard, supervision.StartWanted())

    def end_relays(self) -> int:
        """Have the clients of relays reconnect; returns how many those are that had not been told."""
        return self._relays.end(self._broker.relays)

    def prepare_gateway(self) -> None:
        """Start the gateway's next process, which waits until it is used."""
        if self._broker.gateway is not None:
            self._standby.launch(self._boot(self._broker.gateway, os.urandom(8).hex()), self._broker.command)

    @property
    def gateway_readiness(self) -> Readiness:
        """Whether that process is ready to be used."""
        return self._standby.readiness

    def replace_gateway(self, within_s: float) -> None:
        """End the gateway's process within this time; its next one follows."""
        if self._broker.gateway is not None:
            self._deliver(self._broker.gateway, supervision.LeaveWanted(control.Drain(within_s)))
            self._deliver(self._broker.gateway, supervision.StartWanted())

    def start_stopped(self, number: int) -> None:
        """Start this shard, which has no process."""
        self._deliver(self._broker.shards[number], supervision.StartWanted())

    def note_rolling(self, rolling: RollingRecord | None) -> None:
        """This is left to do."""
        self._broker.rolling = rolling
        self._remember()

    def end_rolling(self, within_s: float, to: list[int] | None = None, then: RollingRecord | None = None) -> None:
        """Have the additional shard leave, with its clients to `to` (None: to all that serve); `then` is left to do."""
        rolling = self._broker.rolling
        if rolling is None:
            return
        self._broker.rolling = then
        self._standby.discard()
        if then is None:
            self._broker.command = self._broker.own_command
        others = [one.number for one in self._broker.shards[: rolling.shards] if one.state.is_accepting]
        self._want(rolling.shards, control.Drain(within_s, others if to is None else to, rolling.relay_s))

    def _align(self, leave: control.Drain | None = None) -> None:
        """Have as many shards as are wanted: start those that are missing, retire those that are too many."""
        wanted = self._broker.wanted
        while len(self._broker.shards) < wanted:
            self._broker.shards.append(SupervisedShard(len(self._broker.shards), is_founder=False))
        others = [one.number for one in self._broker.shards if one.number < wanted and one.state.is_accepting]
        for shard in self._broker.shards:
            if shard.number < wanted:
                self._deliver(shard, supervision.StartWanted())
            else:
                own = leave or control.Drain(self._leaves_within_s(shard), others)
                self._deliver(shard, supervision.LeaveWanted(own))
        self._remember()

    def _leaves_within_s(self, shard: SupervisedShard) -> float:
        """0 where clients of a broker that leaves are not told before they are closed."""
        grace_s = self._broker.options.limits.lame_duck_grace_s
        return grace_s + time_to_move_s(self._broker.page, shard.number) if grace_s else 0.0

    def kill_shard(self, number: int) -> None:
        """Kill its process as a crash would, without counting it as a crash. Nothing where it has none."""
        self._deliver(self._broker.shards[number], supervision.KillWanted())
