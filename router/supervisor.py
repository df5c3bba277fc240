"""The supervisor: carries out what `router.supervision` decides, for all shards of one broker.

Owns whatever outlives a shard: listeners, the shared page, the link directory, the queues of hand-off. It holds no
client's bytes. Signals, control messages, deaths and time become events; steering and the list of peers follow from
the states, and are published whenever they differ from what was published last. Asks for its shards before it imports
what it does not need for that, so that both take the same time once.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from broker.options import Options
from router import gap, monitor_socket, stats_place, supervision
from router.cores import MAX_SHARDS, usable_cores
from router.doors import Doors
from router.footprint import Footprint
from router.inherited import Inherited
from router.launcher import Launcher
from router.listeners import ListenError
from router.notify import Notifier
from router.shard_process import ShardProcess
from router.supervision import Phase, ShardState
from router.system_desk import SystemDesk
from router.zygote import GROUP_SIGNALS
from shards import control, linkdir, logs
from shards.page import Page

if TYPE_CHECKING:
    import asyncio

    from router.desk import Desk
    from router.handoff import Handoff

log = logging.getLogger("gnatswarm.router")

TICK_S = 0.25
# A tick that comes so much later than it should means that this process did not run.
LATE_S = 0.5

HANDLED_SIGNALS = (*GROUP_SIGNALS, signal.SIGTERM)


class CannotStart(Exception):
    """The broker cannot be started as asked; the text is for the operator."""


class Shard:
    """One shard, whatever its process at the moment."""

    def __init__(self, number: int, *, is_founder: bool) -> None:
        self.number = number
        self.state = ShardState(is_founder=is_founder)
        self.process: ShardProcess | None = None
        self.link_path = ""
        self.was_steered = False


class Supervisor:
    """All shards of one broker; `start()` starts them, `run()` is its life and returns the exit code.

    CannotStart from the constructor and from start().
    """

    def __init__(
        self,
        options: Options,
        *,
        program: str,
        reparse: Callable[[], Options] | None = None,
        command: Sequence[str] | None = None,
        inherited: Inherited | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self.options = options
        self.notifier = notifier or Notifier()
        self._program = program
        self.stats_dir = stats_place.choose(options, program)
        self._reparse = reparse
        self.configured_us = 0  # when the options were last reloaded, µs since 1970; 0: never
        # For whoever asks shards questions through tell(): what they answer, and that a process is gone.
        self._reloading: set[int] = set()  # shards that have not said that the last reload holds
        self.on_snapshot_reply: Callable[[int, control.SnapshotReply], None] = lambda shard, reply: None
        self.on_shard_gone: Callable[[int], None] = lambda shard: None
        self.on_reloaded: Callable[[], None] = lambda: None  # the options are others from here on
        self.on_disconnected: Callable[[int, int], None] = lambda shard, clients: None
        wanted = options.swarm.shards or usable_cores()
        if not 1 <= wanted <= MAX_SHARDS:
            raise CannotStart(f"shards must be 1..{MAX_SHARDS}, not {wanted}")
        if options.swarm.accept not in ("reuseport", "handoff"):
            raise CannotStart(f"accept must be 'reuseport' or 'handoff', not {options.swarm.accept!r}")
        self.is_handoff = options.swarm.accept == "handoff"
        self.wanted = wanted
        self.started_at = time.monotonic()
        # As long as a server's public key, as some clients' tests want it; ours signs nothing.
        self.server_id = "N" + base64.b32encode(os.urandom(35)).decode()[:55]
        self.server_name = options.server_name or self.server_id
        try:
            passed_in = inherited.monitoring if inherited is not None else None
            self.monitor_socket = passed_in or monitor_socket.listen(options)
            self.doors = Doors(options, wanted, is_handoff=self.is_handoff, inherited=inherited)
        except ListenError as error:
            raise CannotStart(str(error)) from None
        self._launcher = Launcher(command)
        try:
            self.footprint = Footprint(
                options,
                port=self.doors.clients.port,
                server_name=self.server_name,
                announce=self._launcher.remove_when_gone,
            )
        except linkdir.LinkDirectoryError as error:
            self.doors.close()
            self._launcher.close()
            raise CannotStart(str(error)) from None
        self.page = Page.create()
        self.shards: list[Shard] = []
        self.system = SystemDesk(self)
        self._handoff: Handoff | None = None
        self._peers: list[control.Peer] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Future[int] | None = None
        self._last_tick = 0.0
        self.is_serving = False  # every founder was ready: "Server is ready" has been said
        self._is_leaving = False  # lame duck: no process is started any more
        self._exit_code: int | None = None  # set: the broker stops

    def start(self) -> None:
        """Start the founders. No event loop is needed for that yet."""
        if self.is_handoff:
            from router.handoff import Handoff

            self._handoff = Handoff(self.doors.clients.sockets[0], self.page, self._accepting)
        self.shards = [Shard(number, is_founder=True) for number in range(self.wanted)]
        for shard in self.shards:
            self._deliver(shard, supervision.StartWanted())
        try:
            self.footprint.write_pid_file(self.options.pid_file)
        except OSError as error:
            raise CannotStart(f"Could not write pidfile: {self.options.pid_file}: {error.strerror}") from None

    def meet(self) -> None:
        """Wait until the processes of the founders are there."""
        for shard in self.shards:
            if shard.process is not None:
                self._meet(shard)

    @cached_property
    def desk(self) -> Desk:
        """For whoever wants pages; with the first of them comes all that only pages need."""
        from router.desk import Desk

        return Desk(self)

    @property
    def is_monitored(self) -> bool:
        """Whether there are monitoring pages."""
        return self.monitor_socket is not None

    @property
    def shard_pids(self) -> list[int]:
        """Of those that have a process."""
        return [shard.process.pid for shard in self.shards if shard.process is not None]

    async def run(self) -> int:
        """Supervise until the broker has stopped; the exit code."""
        import asyncio

        from router.operator_answers import answer
        from router.operator_socket import serve_operators

        self._loop = loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number in HANDLED_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
        for shard in self.shards:
            if shard.process is not None and not shard.process.is_open:
                shard.process.open_channel(self._on_message, self._on_channel_ended, self._on_exited)
        if self._handoff is not None:
            self._handoff.start()
        self._last_tick = time.monotonic()
        self._tick()
        self._publish()
        operators = await serve_operators(self.footprint.operator_path, partial(answer, self))
        monitor = None
        self.system.configure()
        if self.monitor_socket is not None:
            from router.monitor import Monitor  # and with it all that only the pages need

            monitor = Monitor(self, self.monitor_socket)
            await monitor.start()
        try:
            return await self._done
        finally:
            operators.close()
            if monitor is not None:
                monitor.close()
            # A second signal must not end us between here and the last socket file's removal.
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
            for number in HANDLED_SIGNALS:
                loop.remove_signal_handler(number)

    def close(self) -> None:
        """Give everything back: no process, descriptor, socket file or directory of ours stays."""
        self._launcher.close()
        for shard in self.shards:
            if shard.process is not None:
                shard.process.kill()
                shard.process.wait_exit()
                self._forget(shard)
        if self._handoff is not None:
            self._handoff.close()
        self.doors.close()
        if self.monitor_socket is not None:
            self.monitor_socket.close()
        self.footprint.remove()
        self.page.close()
        self.notifier.close()

    # ---- events in ----

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        log.debug("Trapped %s", name)
        if number == signal.SIGTERM:
            # As nats-server: a lame duck ends in its own time, whatever the service manager says meanwhile.
            if not self._is_leaving:
                self.stop(1)
        elif number == signal.SIGINT:
            self.stop(0)
        elif number == signal.SIGHUP:
            self.reload()
        elif number == signal.SIGUSR1:
            self._reopen_logs()
        elif number == signal.SIGUSR2:
            self.become_lame_duck()
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            error = self.scale(self.wanted + (1 if number == signal.SIGTTIN else -1))
            if error:
                log.warning("%s: %s", name, error)

    def _on_message(self, process: ShardProcess, message: control.Message) -> None:
        shard = self._shard_of(process)
        if shard is None:
            return
        if isinstance(message, control.Pong):
            self._deliver(shard, supervision.Pong(message.seq))
        elif isinstance(message, control.Linked):
            shard.link_path = message.path
            self._deliver(shard, supervision.Linked())
        elif isinstance(message, control.Ready):
            self._deliver(shard, supervision.Ready())
        elif isinstance(message, control.InStep):
            self._deliver(shard, supervision.InStep(message.on))
        elif isinstance(message, control.HasRoom):
            self._deliver(shard, supervision.HasRoom(message.on))
        elif isinstance(message, control.Fatal):
            self._deliver(shard, supervision.Fatal(message.reason))
        elif isinstance(message, control.Drained):
            self._deliver(shard, supervision.Drained())
        elif isinstance(message, control.Reloaded):
            self._note_reloaded(shard.number)
        elif isinstance(message, control.Disconnected):
            self.on_disconnected(shard.number, message.clients)
        elif isinstance(message, control.SnapshotReply):
            self.on_snapshot_reply(shard.number, message)
        elif isinstance(message, control.SystemRequest | control.AccountChanged):
            self.system.on_message(shard.number, message)

    def await_reloaded(self) -> None:
        """Log that the reload is done once every shard has said so, or is gone."""
        self._reloading = {shard.number for shard in self.shards if shard.process is not None}

    def _note_reloaded(self, number: int) -> None:
        if number in self._reloading:
            self._reloading.discard(number)
            if not self._reloading:
                log.info("Reloaded server configuration")
                self.notifier.reloaded()

    def _on_channel_ended(self, process: ShardProcess, error: control.ControlError | None) -> None:
        shard = self._shard_of(process)
        if shard is not None:
            self._note_reloaded(shard.number)
            self._deliver(shard, supervision.ChannelEnded("" if error is None else str(error)))

    def _on_exited(self, process: ShardProcess, reason: str) -> None:
        # Reaped, so it says nothing new; but what it said last may be unread, and a Fatal there is the real reason.
        process.read_what_is_left()
        shard = self._shard_of(process)
        if shard is not None:
            self._deliver(shard, supervision.Exited(reason))

    def _tick(self) -> None:
        assert self._loop is not None
        now = time.monotonic()
        gap_s = now - self._last_tick - TICK_S
        self._last_tick = now
        for shard in list(self.shards):
            if gap_s > LATE_S:
                self._deliver(shard, supervision.Late(gap_s))
            self._deliver(shard, supervision.Tick())
        logs.rotate_when_full()
        self._notify()
        self._loop.call_later(TICK_S, self._tick)

    def _shard_of(self, process: ShardProcess) -> Shard | None:
        """The shard whose process this is; None for a process that was replaced meanwhile."""
        return next((shard for shard in self.shards if shard.process is process), None)

    # ---- decisions, and what follows from them ----

    def _deliver(self, shard: Shard, event: supervision.Event) -> None:
        before = shard.state
        shard.state, actions = supervision.step(shard.state, event, time.monotonic())
        for action in actions:
            self._carry_out(shard, action)
        if shard.state != before:
            if shard.state.phase is not before.phase:
                log.debug("Shard %d is %s", shard.number, shard.state.phase.value)
            self._publish()

    def _carry_out(self, shard: Shard, action: supervision.Action) -> None:
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

    def _spawn(self, shard: Shard) -> None:
        if self._is_leaving or self._exit_code is not None:
            # The listeners are closed already. It has nobody to serve.
            self._deliver(shard, supervision.StopWanted())
            self._deliver(shard, supervision.Exited("not started again"))
            return
        number = shard.number
        boot_id = os.urandom(8).hex()
        boot = control.Boot(
            version=control.CONTROL_VERSION,
            shard=number,
            shards=self.wanted,
            server_id=self.server_id,
            server_name=self.server_name,
            boot_id=boot_id,
            options=self.options,
            host=self.options.host,
            port=self.doors.clients.port,
            listener_fds=self.doors.client_fds(number),
            websocket_fds=self.doors.websocket_fds(number),
            handoff_fd=self._handoff.shard_fd(number) if self._handoff else -1,
            page_fd=self.page.fd,
            link_dir=self.footprint.link_dir,
            created_us=self.page.created_us,
            router_pid=os.getpid(),
            stats_dir=self.stats_dir,
        )
        shard.link_path = ""
        try:
            shard.process = self._launcher.launch(boot)
        except OSError as error:
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {error.strerror}"))
            return
        if self._loop is not None:
            self._meet(shard)

    def _meet(self, shard: Shard) -> None:
        """The process that was asked for is there, or something is to be done about it."""
        assert shard.process is not None
        try:
            process = shard.process = self._launcher.meet(shard.process)
        except OSError as error:
            shard.process = None
            self._deliver(shard, supervision.SpawnFailed(f"cannot start a process: {error.strerror}"))
            return
        self.page.note_boot(shard.number, process.pid)
        log.debug("Shard %d is process %d, boot id %s", shard.number, process.pid, process.boot.boot_id)
        if self._loop is not None:
            process.open_channel(self._on_message, self._on_channel_ended, self._on_exited)

    def _forget(self, shard: Shard) -> None:
        """The process is reaped: exactly once for each that was started."""
        process, shard.process = shard.process, None
        if process is None:
            return
        if shard.link_path:
            linkdir.remove_socket(shard.link_path)
            shard.link_path = ""
        shard.was_steered = False
        process.close()
        if self.stats_dir:
            gap.note_gap(self.page, process, self.stats_dir, shard.state.last_reason)
        gone = self.page.forget_connections(shard.number)
        if gone:
            log.debug("Shard %d took %d connections with it", shard.number, gone)
        if self._handoff is not None:
            self._handoff.take_back(shard.number)
        self.on_shard_gone(shard.number)

    def _accepting(self) -> list[int]:
        """Who gets new connections; those without room only where nobody has any."""
        accepting = [shard for shard in self.shards if shard.state.is_accepting]
        return [shard.number for shard in [one for one in accepting if one.state.has_room] or accepting]

    def _publish(self) -> None:
        """Bring what the world sees up to date with the states."""
        peers = [
            control.Peer(shard.number, shard.process.boot.boot_id, shard.link_path)
            for shard in self.shards
            if shard.state.is_peer and shard.process is not None
        ]
        if peers != self._peers:
            self._peers = peers
            for shard in self.shards:
                if shard.state.is_peer and shard.process is not None:
                    shard.process.send(control.Peers(peers))
        self._check_ready()
        if self.is_serving:
            self._steer()
        self._notify()
        self._check_done()

    def _notify(self) -> None:
        self.notifier.observe(
            [shard.state for shard in self.shards],
            is_serving=self.is_serving,
            is_leaving=self._is_leaving or self._exit_code is not None,
            connections=self.page.connections,
        )

    def _check_done(self) -> None:
        if self._done is None or self._done.done():
            return
        if all(shard.state.phase is Phase.STOPPED for shard in self.shards):
            if self._exit_code is not None:
                self._done.set_result(self._exit_code)
            elif self._is_leaving:
                log.info("Lame duck mode: every shard has left")
                self._done.set_result(0)

    def _check_ready(self) -> None:
        if self.is_serving or self._exit_code is not None or self._is_leaving:
            return
        if all(shard.state.phase is Phase.READY for shard in self.shards if shard.state.is_founder):
            self.is_serving = True
            self._steer()
            if not self.is_handoff and not self.doors.steering.works:
                log.warning(
                    "Cannot steer connections (%s): the kernel spreads them over all shards by hash",
                    self.doors.steering.error.strerror if self.doors.steering.error else "",
                )
            try:
                where = self.options.ports_file_dir
                self.footprint.write_ports_file(where, self._program, self.doors, self.monitor_socket)
            except OSError as error:
                log.error("Error writing ports file to %s: %s", self.options.ports_file_dir, error)
            log.info("Server is ready")

    def _steer(self) -> None:
        accepting = self._accepting()
        if self._handoff is not None:
            self._handoff.shards_changed()
        # With nobody to take them, connections wait for those that come back.
        self.doors.steer(accepting or [shard.number for shard in self.shards if shard.state.is_wanted])
        for shard in self.shards:
            is_steered = shard.number in accepting
            if is_steered != shard.was_steered and shard.process is not None:
                shard.was_steered = is_steered
                shard.process.send(control.Steered(is_steered))

    # ---- what operators want ----

    def tell(self, shard: int, message: control.Message) -> bool:
        """Say this to one shard. False when it has no process."""
        process = self.shards[shard].process if shard < len(self.shards) else None
        if process is None:
            return False
        process.send(message)
        return True

    def tell_all(self, message: control.Message) -> None:
        """Say this to every shard that has a process."""
        for shard in self.shards:
            self.tell(shard.number, message)

    def stop(self, exit_code: int) -> None:
        """Stop every shard, bounded in time; a second call kills those that have not stopped."""
        if self._exit_code is not None:
            for shard in self.shards:
                if shard.process is not None:
                    shard.process.kill()
            return
        self._exit_code = exit_code
        log.info("Initiating Shutdown...")
        self.system.say_shutdown()
        # Nobody is let in any more; shards hold copies until they exit.
        if self._handoff is not None:
            self._handoff.close()
            self._handoff = None
        self.doors.close()
        for shard in self.shards:
            self._deliver(shard, supervision.StopWanted())
        self._publish()

    def become_lame_duck(self) -> None:
        """Leave as a whole: no new connections, clients are told and closed over time, then exit 0."""
        if self._is_leaving or self._exit_code is not None:
            return
        self._is_leaving = True
        limits = self.options.limits
        log.info("Entering lame duck mode, stop accepting new clients")
        self.system.say_lame_duck()
        if self._handoff is not None:
            self._handoff.close()
            self._handoff = None
        self.doors.close()
        message = control.LameDuck(limits.lame_duck_grace_s, limits.lame_duck_duration_s)
        for shard in self.shards:
            if shard.state.has_process:
                self._deliver(shard, supervision.LeaveWanted(message))
            else:
                self._deliver(shard, supervision.StopWanted())
        self._publish()

    def scale(self, wanted: int) -> str:
        """Begin to run this many shards; "" or why not. New ones take connections as soon as they are ready."""
        if not 1 <= wanted <= MAX_SHARDS:
            return f"shards must be 1..{MAX_SHARDS}, not {wanted}"
        if self._is_leaving or self._exit_code is not None:
            return "the broker is shutting down"
        if not self.is_serving:
            return "the broker is still starting"
        try:
            self.doors.grow_to(wanted)
        except OSError as error:
            return f"cannot open another listener: {error.strerror}"
        log.info("Scaling from %d to %d shards", self.wanted, wanted)
        self.wanted = wanted
        while len(self.shards) < wanted:
            self.shards.append(Shard(len(self.shards), is_founder=False))
        leave = control.Drain(self.options.limits.lame_duck_grace_s)
        for shard in self.shards:
            if shard.number < wanted:
                self._deliver(shard, supervision.StartWanted())
            else:
                self._deliver(shard, supervision.LeaveWanted(leave))
        # What waits in a listener that is closed is lost; its shard has accepted until the queue was empty: a moment's
        # worth.
        self.doors.shrink_to(wanted)
        return ""

    def reload(self) -> None:
        """Read the configuration anew and give it to all; an error in it changes nothing."""
        from router.reloader import reload

        reload(self, self._reparse)

    def _reopen_logs(self) -> None:
        problem = logs.reopen()
        if problem:
            log.error("%s", problem)
        self.tell_all(control.ReopenLog())
