"""The keeper: the process that a user starts, and the parent of router and shards.

It has no thread, no event loop and no decision to make, so there is little of which it could die. `keep()` forks the
router, then imports what a shard needs, and forks shards from that when the router asks: imports are most of a shard's
start, and are done once, while the router reads its configuration. It passes signals on to the router, reaps, and holds
copies of what the broker is made of: listeners, shared page, operators' socket, locks, and a record of the state. When
the router alone dies, it forks another, which takes all that over, and signals that the dead one has not read; shards
and clients go on meanwhile. When the keeper dies, router and shards end. After SIGTERM or SIGINT a router is not
replaced any more.

For an upgrade it runs the next router by exec of another program, and comes back to its own code where that one does
not serve, or is not there yet when the broker is told to end; then it becomes that program itself, by exec in place,
with its children and all that it holds.

Packets from and to the router are in `shards.boundary.keeping`. Called by the command line.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select
import sys
import time

from gnatswarm.shards.boundary.children import HANDLED_SIGNALS, child_environment

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import NoReturn, Protocol

    from gnatswarm.shards.boundary.keeping import Packet, Post, Succession

    class Begun(Protocol):
        """Ports that were opened before the router was forked."""

        @property
        def has_https(self) -> bool: ...

        def close(self) -> None:
            """Close our copies; the router has its own."""

else:
    # `signal` and `socket` make enumerations of all their numbers; the port is open before.
    import _signal as signal


_WATCHED = (*HANDLED_SIGNALS, signal.SIGCHLD)
EX_SOFTWARE = 70  # of sysexits(3)
# A router that dies this often within this time would die for ever.
MOST_DEATHS = 5
DEATHS_WITHIN_S = 10.0
# A router of another version that does not serve by then is killed, and the one before comes back.
PROOF_S = 20.0
# Two signals to stop within this time are one request, as for the router. A router that has not even read the second
# request so long after it hangs, and is killed: then the broker ends.
SAME_REQUEST_S = 0.5
UNHEARD_S = 3.0
_NEVER = float("inf")
# With nothing to do for so long after its start, it gives back what it has read of files.
QUIET_MS = 2000
# A router that cannot be forked for now, without processes, memory or descriptors: try again.
AGAIN_MS = 100


# Behind the command of another version: run a shard. Its environment says where its modules are, not ours.
SHARD_COMMAND = "_shard"
# In the environment of a program that follows another one: a descriptor, and after a colon the name we were called by.
SUCCESSION = "GNATSWARM_SUCCESSION"


def keep(
    route: Callable[[Post], int],
    *,
    owner: int = -1,
    prepares: bool = True,
    begin: Callable[[], Begun | None] = lambda: None,
    program: str = "gnatswarm",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a broker; returns its exit code.

    `route` runs the router. `owner` is a descriptor whose end stops the broker, as SIGINT does; -1: none. `prepares`:
    import what shards need at once, not when the first is launched. `begin` opens ports, if it can without a
    configuration: then what router and shards both need is imported before the fork, and is theirs in common; else the
    router is forked at once, to open them. A program that follows this one is called with
    `arguments`, and gets the variables of `environment`, which are of the service manager. Where this program is to
    follow another one, as SUCCESSION says, it is a running broker's keeper or router.
    """
    number = os.environ.pop(SUCCESSION, "").partition(":")[0]
    again = _Again(program, tuple(arguments), dict(environment or {}))
    if not number:
        return _Keeper(route, owner, again).run(prepares=prepares, begin=begin)
    from gnatswarm.shards.boundary import keeping

    succession = keeping.read_succession(int(number))
    if succession.is_router:
        return _follow_as_router(route, succession)
    keeper = _Keeper(route, succession.owner, again)
    keeper.take_over(succession)
    return keeper.run(prepares=True)


def import_formats() -> None:
    """Import what structs are made with, without what it imports for nothing."""
    from gnatswarm.shards import lean_imports

    lean_imports.import_formats()


def formats() -> dict[str, int]:
    """The versions of what keeper and shards of this program say to others, by the formats' names."""
    from gnatswarm.shards.formats import versions

    return versions()


def run_shard(arguments: Sequence[str]) -> int:
    """Run a shard in this process: its number, and what `shards.__main__` takes; returns its exit code."""
    from gnatswarm.shards.__main__ import main

    _name_shard("".join(arguments[:1]))
    return main(list(arguments[1:]))


def _name_shard(number: str) -> None:
    """Say in `ps` and `top` which shard this process is, or that it is the gateway."""
    from gnatswarm.shards.boundary import control, parentage

    is_gateway = number == str(control.GATEWAY_NUMBER)
    parentage.name_process("gnat-gateway" if is_gateway else "gnat-shard")
    parentage.title_process("gnatswarm: gateway" if is_gateway else f"gnatswarm: shard {number}")


class _Again:
    """How a program that follows this one is called."""

    def __init__(self, program: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self._program = program
        self._arguments = arguments
        self._environment = environment

    def run(self, command: list[str], descriptor: int) -> NoReturn:
        """Become that program. OSError."""
        environment = {**os.environ, **self._environment, SUCCESSION: f"{descriptor}:{self._program}"}
        passed_in = self._environment.get("LISTEN_FDS", "")
        if passed_in.isascii() and passed_in.isdigit():
            environment["LISTEN_PID"] = str(os.getpid())
            for number in range(3, 3 + int(passed_in)):  # SD_LISTEN_FDS_START
                os.set_inheritable(number, True)
        os.execvpe(command[0], [*command, *self._arguments], environment)


def _follow_as_router(route: Callable[[Post], int], succession: Succession) -> int:
    """Run the router in this process, which another version's keeper has started; returns the exit code."""
    import socket

    from gnatswarm.shards.boundary import keeping, parentage

    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)  # it ignores some, and has to hear when the keeper dies
    parentage.name_process("gnat-router")
    parentage.title_process("gnatswarm: router")
    sock = socket.socket(fileno=succession.sock)
    legacy = keeping.Legacy(succession.reason, succession.held, succession.children, succession.link_dirs)
    code = route(keeping.Post(sock, succession.keeper_pid, legacy, is_successor=True))
    keeping.send(sock, keeping.Ending(code))
    return code


class _Child:
    """A shard that was started; the keeper's end of its lifeline is closed when it was reaped."""

    def __init__(self, pid: int, shard: int, lifeline: socket.socket) -> None:
        self.pid = pid
        self.shard = shard
        self.lifeline = lifeline
        self.status: int | None = None


class _Keeper:
    def __init__(self, route: Callable[[Post], int], owner: int, again: _Again) -> None:
        self._route = route
        self._owner = owner
        self._again = again
        self._pid = os.getpid()
        self._router_pid = 0
        self._sock: socket.socket | None = None
        # The router's end of it, so that what a router has not read can be read when it has ended. None: we are a later
        # program, and the one before had no copy.
        self._theirs: socket.socket | None = None
        self._children: dict[int, _Child] = {}
        self._held: dict[str, int] = {}
        self._link_dirs: list[str] = []
        self._deaths: list[float] = []
        self._router_status = 0
        self._is_stopping = False  # was told to end: a router is started only where one had made room for it
        self._told_to_stop_at = 0.0
        self._unheard_at = _NEVER  # the router has to have read by then that it was told again
        self._code: int | None = None  # the broker ends with it
        self._unsent: list[Packet] = []  # the router's queue is full
        self._keeping: ModuleType | None = None
        self._command: list[str] = []  # runs a router by exec; []: fork
        self._candidate: list[str] | None = None  # likewise, of the one that has to prove itself
        self._is_candidate = False  # the router that runs, until it has taken over
        self._told_candidate: list[int] = []  # signals, for the version before if that comes back
        self._due: tuple[str, str] | None = None  # a router could not be forked; as _start_router takes it
        self._proof_until = 0.0
        self._renewal: list[str] = []  # become this
        self._own: tuple[_socket.socket, ...] = ()
        self._has_rested = False

    def take_over(self, succession: Succession) -> None:
        """Go on in the place of another program; before run()."""
        import socket

        self._sock = socket.socket(fileno=succession.sock)
        if succession.theirs >= 0:
            self._theirs = socket.socket(fileno=succession.theirs)
        self._router_pid = succession.router_pid
        self._held = dict(succession.held)
        self._link_dirs = list(succession.link_dirs)
        self._is_stopping = succession.is_stopping
        for child in succession.children:
            sock = socket.socket() if child.lifeline < 0 else socket.socket(fileno=child.lifeline)
            self._children[child.pid] = one = _Child(child.pid, child.shard, sock)
            one.status = child.status
            if child.lifeline < 0:
                sock.close()

    def run(self, *, prepares: bool, begin: Callable[[], Begun | None] = lambda: None) -> int:
        wakes, woken = _socket.socketpair()
        for end in (wakes, woken):
            end.setblocking(False)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        for number in _WATCHED:
            signal.signal(number, _do_nothing)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._own = (wakes, woken)
        if self._sock is None:
            # Imports allocate much and leave no garbage. The router enables collecting when it has imported the rest.
            gc.disable()
            begun = begin()
            if begun is not None:
                _share(has_https=begun.has_https)
            try:
                self._start_router("")
            except OSError as error:  # of a limit of processes, or of memory
                from gnatswarm.shards.boundary import logs

                logs.fatal_line(f"cannot start a process: {os.strerror(error.errno or 0)}")
                return 1
            if begun is not None:
                begun.close()
        else:
            self._say(self._words.Renewed())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        _raise_limit()
        if prepares:
            _prepare()
        gc.enable()
        self._reap()  # what ended before signals were watched
        while True:
            self._await()
            if self._renewal and not self._unsent:
                self._renew(self._renewal)
            if self._router_pid == 0:
                code = self._after_router() if self._due is None else self._try_again(*self._due)
                if code is not None:
                    # What a signal could ask for is done. Python would let it end this process, with another code.
                    for number in HANDLED_SIGNALS:
                        signal.signal(number, signal.SIG_IGN)
                    return code

    # ---- events

    def _await(self) -> None:
        """Wait for the next events, and handle them."""
        assert self._sock is not None
        _wakes, woken = self._own
        poller = select.poll()
        if self._due is None:
            poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poller.register(woken, select.POLLIN)
        if self._owner >= 0:
            poller.register(self._owner, select.POLLIN)
        wait_ms = self._until_due_ms() if self._due is None else AGAIN_MS
        ready = dict(poller.poll(wait_ms if self._has_rested or wait_ms is not None else QUIET_MS))
        if not ready and wait_ms is None:
            self._rest()
        if self._sock.fileno() in ready:  # first: a router that has taken over does so before a signal
            self._flush()
            self._read()
        if woken.fileno() in ready:
            self._take_signals(woken)
        if self._owner in ready and not os.read(self._owner, 64):
            self._owner = -1
            self._on_signal(signal.SIGINT)

    def _take_signals(self, woken: _socket.socket) -> None:
        """Handle those that have come."""
        try:
            numbers = woken.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number != signal.SIGCHLD:
                self._on_signal(number)
        self._reap()  # also where there is no SIGCHLD: in a flood of others its byte may have found no room

    def _until_due_ms(self) -> int | None:
        """How long to wait for a router that has to prove itself, or to stop; one that has had its time is killed."""
        if self._router_pid == 0:
            return None
        until = min(self._proof_until if self._is_candidate else _NEVER, self._unheard_at)
        if until == _NEVER:
            return None
        left_s = until - time.monotonic()
        if left_s > 0:
            return int(left_s * 1000) + 1
        if until != self._unheard_at or not self._is_heard():
            _kill(self._router_pid)
        self._unheard_at = _NEVER
        return None

    def _is_heard(self) -> bool:
        """Whether the router has read everything that it was sent."""
        import fcntl
        import termios

        assert self._sock is not None
        unread = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4))
        return not self._unsent and not any(unread)

    def _rest(self) -> None:
        from gnatswarm.shards.boundary import parentage

        self._has_rested = True
        parentage.forget_files()

    def _on_signal(self, number: int) -> None:
        if self._is_candidate:
            self._told_candidate.append(number)
        if number in (signal.SIGTERM, signal.SIGINT):
            now = time.monotonic()
            if not self._is_stopping:
                self._told_to_stop_at = now
            elif now - self._told_to_stop_at >= SAME_REQUEST_S:
                self._unheard_at = min(self._unheard_at, now + UNHEARD_S)
            self._is_stopping = True
            if self._is_candidate:  # it may hang, or never serve; the version before ends the broker in order
                self._candidate = None
                if self._router_pid:
                    _kill(self._router_pid)
        self._say(self._words.Signalled(number))

    def _reap(self) -> None:
        """Every child that has ended, also orphans that a first process of a container gets."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._router_pid:
                self._router_pid, self._router_status = 0, status
            child = self._children.get(pid)
            if child is not None:
                child.status = status
                child.lifeline.close()
                self._say(self._words.Exited(pid, status))

    @property
    def _words(self) -> ModuleType:
        """The packets' module; imported after the router was forked, which imports it at the same time."""
        if self._keeping is None:
            from gnatswarm.shards.boundary import keeping

            self._keeping = keeping
            self._decoder = keeping.decoder_of(keeping.ToKeeper)
        return self._keeping

    def _say(self, packet: Packet) -> None:
        self._unsent.append(packet)
        self._flush()

    def _flush(self) -> None:
        """Never waits for the router, which may be waiting for us."""
        import socket

        assert self._sock is not None
        while self._unsent:
            try:
                self._words.send(self._sock, self._unsent[0], flags=socket.MSG_DONTWAIT)
            except OSError:  # its queue is full; or it is dead, and the next router gets from here what is for it
                return
            self._unsent.pop(0)

    def _unread_signals(self) -> list[int]:
        """Signals for the router that has ended, which it has not read. The table tells the next of exits."""
        import contextlib
        import socket

        packets: list[Packet] = []
        if self._theirs is not None:
            decoder = self._words.decoder_of(self._words.ToRouter)
            with self._theirs, contextlib.suppress(BlockingIOError):
                while received := self._words.receive(self._theirs, decoder, socket.MSG_DONTWAIT):
                    packets.append(received[0])
        return [one.number for one in (*packets, *self._unsent) if isinstance(one, self._words.Signalled)]

    def _read(self) -> None:
        """What the router has sent until now."""
        import socket

        words = self._words
        assert self._sock is not None
        while True:
            try:
                received = words.receive(self._sock, self._decoder, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if received is None:
                # Its end is closed: it is dead, or its interpreter is about to end.
                if self._router_pid:
                    _pid, self._router_status = os.waitpid(self._router_pid, 0)
                    self._router_pid = 0
                return
            self._carry_out(*received)

    def _carry_out(self, packet: Packet, descriptors: list[int]) -> None:
        words = self._words
        if isinstance(packet, words.Launch):
            self._say(words.Launched(self._launch(packet.shard, descriptors, packet.numbers, packet.command)))
        elif isinstance(packet, words.Kill):
            child = self._children.get(packet.pid)
            if child is not None and child.status is None:
                _kill(child.pid)
        elif isinstance(packet, words.Reach):
            child = self._children.get(packet.pid)
            if child is not None and child.status is None and descriptors:
                words.send_channel(child.lifeline, descriptors[0])
        elif isinstance(packet, words.Hold):
            is_held = bool(descriptors)
            if is_held:  # else we have none left, and go on holding the last one
                self._release(packet.name)
                self._held[packet.name] = descriptors.pop()
            self._say(words.Held(packet.name, is_held))
        elif isinstance(packet, words.Release):
            self._release(packet.name)
        elif isinstance(packet, words.Watch):
            self._link_dirs.append(packet.path)
        elif isinstance(packet, words.Notify):
            _notify(packet.address, packet.text)
        elif isinstance(packet, words.Forgotten):
            self._children.pop(packet.pid, None)
        elif isinstance(packet, words.Ending):
            self._code = packet.code
        elif isinstance(packet, words.Succeed):
            self._candidate = packet.command
        elif isinstance(packet, words.TakenOver):
            if self._candidate is not None:
                self._command, self._candidate = self._candidate, None
                self._is_candidate = False
        elif isinstance(packet, words.Renew):
            self._renewal = packet.command
        elif isinstance(packet, words.FormatsWanted):
            _prepare()
            self._say(words.Formats(formats()))
        for descriptor in descriptors:
            os.close(descriptor)

    def _release(self, name: str) -> None:
        if name in self._held:
            os.close(self._held.pop(name))

    # ---- the router

    def _start_router(self, reason: str, *, unfit: str = "") -> None:
        """Fork a router; `reason`: why the last one died, ""; `unfit`: how its successor ended that did not serve.

        OSError: nothing has changed.
        """
        import socket

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if sys.stdout is not None:
            sys.stdout.flush()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            ours.close()
            command = self._command if self._candidate is None else self._candidate
            if command:
                self._become_router(theirs, reason, command)
            self._be_router(theirs, reason, unfit)
        signals: list[int] = []
        if self._sock is not None:
            signals = self._unread_signals()
            if self._is_candidate:  # it did not serve: nothing that it has read counts
                signals = self._told_candidate
            if self._is_stopping and not {signal.SIGTERM, signal.SIGINT} & set(signals):
                signals.append(signal.SIGTERM)  # the one before read it, and was gone
            self._sock.close()
        self._sock, self._theirs, self._router_pid = ours, theirs, pid
        self._unsent.clear()
        for number in signals:
            self._say(self._words.Signalled(number))
        self._is_candidate = self._candidate is not None
        self._told_candidate = signals if self._is_candidate else []
        self._proof_until = time.monotonic() + PROOF_S

    def _become_router(self, sock: socket.socket, reason: str, command: list[str]) -> NoReturn:
        """Run another version's router by exec."""
        try:
            self._leave_keeper()
            os.set_inheritable(sock.fileno(), True)
            for number in self._held.values():
                os.set_inheritable(number, True)
            shown = [self._words.Child(child.pid, child.shard, child.status) for child in self._children.values()]
            succession = self._words.Succession(
                True, sock.fileno(), self._pid, dict(self._held), shown, list(self._link_dirs), reason
            )
            self._again.run(command, self._words.written(succession))
        except OSError as error:
            from gnatswarm.shards.boundary import logs

            logs.fatal_line(f"Cannot run {command[0]}: {error.strerror}")
        finally:
            os._exit(EX_SOFTWARE)

    def _be_router(self, sock: socket.socket, reason: str, unfit: str) -> NoReturn:
        """Run the router in this process. One that fails unexpectedly says no Ending, and is replaced."""
        code = EX_SOFTWARE
        try:
            code = self._run_router(sock, reason, unfit)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _exit(code)

    def _leave_keeper(self) -> None:
        """Let go, in a forked process, of what is the keeper's."""
        for number in _WATCHED:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        for end in self._own:
            end.close()
        for sock in (self._sock, self._theirs):
            if sock is not None:
                sock.close()
        if self._owner >= 0:
            os.close(self._owner)
        for child in self._children.values():
            child.lifeline.close()  # or a shard would not hear that the keeper has died

    def _run_router(self, sock: socket.socket, reason: str, unfit: str) -> int:
        self._leave_keeper()
        from gnatswarm.shards.boundary import keeping, parentage

        if not reason:  # without shards it leaves nothing behind; its KeeperLink asks for better
            parentage.die_with_parent(signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
        parentage.name_process("gnat-router")
        parentage.title_process("gnatswarm: router")
        legacy = None
        if reason:
            shown = [keeping.Child(child.pid, child.shard, child.status) for child in self._children.values()]
            legacy = keeping.Legacy(reason, dict(self._held), shown, list(self._link_dirs))
        code = self._route(keeping.Post(sock, self._pid, legacy, unfit=unfit))
        keeping.send(sock, keeping.Ending(code))
        return code

    def _after_router(self) -> int | None:
        """The router has ended: the broker's exit code, or None where another one goes on."""
        self._read()
        how = _exit_text(self._router_status)
        has_made_room = self._candidate is not None and not self._is_candidate
        if has_made_room and not self._is_stopping:
            self._restart_router("")
            return None
        if has_made_room or (self._is_candidate and self._code != 0):  # (0: its lame duck mode is over)
            self._candidate = self._code = None
            if self._is_stopping:  # a router of the version before ends the broker in order
                when = "had made room for the next one" if has_made_room else "had not taken over yet"
                self._restart_router(f"it {when} when the broker was told to end")
            else:
                self._restart_router(how, how)
            return None
        if self._code is not None:
            self._end()
            return self._code
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < DEATHS_WITHIN_S] + [now]
        if self._is_stopping or self._words.RECORD not in self._held or len(self._deaths) >= MOST_DEATHS:
            self._end()
            if self._is_stopping or os.WIFEXITED(self._router_status):
                return 1  # it has said why
            if len(self._deaths) >= MOST_DEATHS:
                how += f", the {MOST_DEATHS}th time within {DEATHS_WITHIN_S:.0f} s"
            from gnatswarm.shards.boundary import logs

            logs.fatal_line(f"The router died: {how}. The broker ends")
            return 1
        self._restart_router(how)
        return None

    def _restart_router(self, reason: str, unfit: str = "") -> None:
        """Fork another router, or have that tried again soon: the shards serve on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            self._start_router(reason, unfit=unfit)
        except OSError as error:
            if self._due is None:
                from gnatswarm.shards.boundary import logs

                logs.error_line(f"Cannot start another router: {error.strerror}; trying again")
            self._due = reason, unfit
        else:
            self._due = None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    def _try_again(self, reason: str, unfit: str) -> int | None:
        """There has been no room for a router: the broker's exit code, if it was told to end meanwhile, or None."""
        if self._is_stopping:
            self._end()
            return 1
        self._restart_router(reason, unfit)
        return None

    # ---- the keeper itself

    def _renew(self, command: list[str]) -> None:
        """Become another program, in place: same process, same children."""
        assert self._sock is not None
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # what comes meanwhile waits for the next program
        self._take_signals(self._own[1])  # what came before would end with this one
        if self._unsent or self._router_pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            return
        self._renewal = []
        theirs = -1 if self._theirs is None else self._theirs.fileno()
        numbers = [self._sock.fileno(), *self._held.values(), *(one for one in (self._owner, theirs) if one >= 0)]
        children = []
        for child in self._children.values():
            lifeline = child.lifeline.fileno()  # -1: it was reaped
            children.append(self._words.Child(child.pid, child.shard, child.status, lifeline))
            numbers += [lifeline] if lifeline >= 0 else []
        descriptor = -1
        try:
            for number in numbers:
                os.set_inheritable(number, True)
            descriptor = self._words.written(
                self._words.Succession(
                    *(False, self._sock.fileno(), self._pid, dict(self._held), children, list(self._link_dirs)),
                    owner=self._owner,
                    router_pid=self._router_pid,
                    is_stopping=self._is_stopping,
                    theirs=theirs,
                )
            )
            if sys.stdout is not None:
                sys.stdout.flush()
            self._again.run(command, descriptor)
        except OSError as error:
            for number in numbers:
                os.set_inheritable(number, False)
            if descriptor >= 0:  # nobody follows
                os.close(descriptor)
            self._say(self._words.Renewed(f"cannot run {command[0]}: {error.strerror}"))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    def _end(self) -> None:
        """Leave no process, no link directory, and no file that names this process."""
        for child in self._children.values():
            if child.status is None:
                _kill(child.pid)
        for child in self._children.values():
            if child.status is None:
                os.waitpid(child.pid, 0)
        for name in list(self._held):  # there may be no others left to look into directories
            self._release(name)
        from gnatswarm.shards.boundary import linkdir

        for path in self._link_dirs:
            linkdir.remove_left(path, self._pid)

    # ---- shards

    def _launch(self, shard: int, descriptors: list[int], numbers: list[int], command: list[str]) -> int:
        """The pid of a new shard, or -errno."""
        import socket

        if len(descriptors) != len(numbers):
            return -errno.EMFILE
        if not command:
            _prepare()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            return -(error.errno or 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_shard(shard, [*descriptors, theirs.detach()], numbers, command)
        except OSError as error:
            ours.close()
            return -(error.errno or 1)
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        self._children[pid] = _Child(pid, shard, ours)
        return pid

    def _become_shard(self, shard: int, descriptors: list[int], numbers: list[int], command: list[str]) -> None:
        """Run the shard in this process; never returns. Signals stay blocked."""
        code = 1
        try:
            from gnatswarm.shards.boundary import parentage

            signal.set_wakeup_fd(-1)
            parentage.die_with_parent(signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            control, lifeline = numbers[0], max(*numbers, 2) + 1
            place_descriptors(descriptors, [*numbers, lifeline])
            close_all_but({*numbers, lifeline})
            if command:
                for number in (*numbers, lifeline):
                    os.set_inheritable(number, True)
                told = ["--control-fd", str(control), "--lifeline-fd", str(lifeline)]
                if command[-1] == SHARD_COMMAND:
                    os.execvpe(command[0], [*command, str(shard), *told], dict(os.environ))
                os.execvpe(command[0], [*command, *told], child_environment())
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _name_shard(str(shard))
            from gnatswarm.shards.worker import run

            code = run(control, lifeline)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _exit(code)


def _exit(code: int) -> NoReturn:
    """End a forked process: threads end first, output is written, and nothing else of this program runs."""
    try:
        if "threading" in sys.modules:
            import threading

            for thread in threading.enumerate():
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
    finally:
        os._exit(code)


def _do_nothing(*_: object) -> None:
    """The wake-up descriptor tells the loop."""


def _share(*, has_https: bool = False) -> None:
    """Import what a router and a shard both need: the pages are shared, and the work is done once."""
    from gnatswarm.shards import lean_imports

    lean_imports.import_loop(tls=has_https)  # what is not here now is not for a reload either
    lean_imports.import_formats()
    import base64  # noqa: F401

    import gnatswarm.shards.boundary.handoff
    import gnatswarm.shards.boundary.linkdir
    import gnatswarm.shards.boundary.logs
    import gnatswarm.shards.boundary.page
    import gnatswarm.shards.boundary.parentage
    import gnatswarm.shards.boundary.process_use
    import gnatswarm.shards.boundary.rows
    import gnatswarm.shards.boundary.statfile  # noqa: F401
    from gnatswarm.shards.boundary import control, keeping

    for expected in (keeping.ToKeeper, keeping.ToRouter):
        keeping.decoder_of(expected)  # makes the types' tables, which stay
    control.decoder_of(control.ToRouter)
    # What there is now is never looked at again, so that collecting writes to none of its pages.
    gc.freeze()


def _prepare() -> None:
    """Import what a shard needs; the second call does nothing."""
    if "gnatswarm.shards.worker" in sys.modules:
        return
    # Imports allocate much and leave no garbage; collecting during them would cost a fifth of the start.
    gc.disable()
    from gnatswarm.shards import lean_imports

    lean_imports.import_loop(tls=True)  # a router that is forked later may have pages over HTTPS
    lean_imports.import_formats()
    # At the end of its first window of statistics each shard would, by itself: 1.5 MB more in all.
    import zstandard  # noqa: F401

    import gnatswarm.shards.formats
    import gnatswarm.shards.worker  # noqa: F401
    from gnatswarm.shards.boundary import control

    control.decoder_of(control.ToShard)  # makes the types' tables, which stay
    gc.freeze()
    gc.enable()


def _raise_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: copies of all listeners are here."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # as large as it can be
        return


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is nobody else's


def _notify(address: str, text: str) -> None:
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), address)
    except OSError:  # the service manager's queue is full, or it is gone
        return


def _exit_text(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    import signal

    return f"killed by {signal.Signals(-code).name if -code in signal.valid_signals() else f'signal {-code}'}"


def place_descriptors(descriptors: list[int], numbers: list[int]) -> None:
    """Move each descriptor to its number, which another of them may occupy at first."""
    import fcntl

    above = max(*descriptors, *numbers, 2) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)


def close_all_but(numbers: set[int]) -> None:
    """Close every descriptor but these and the standard three."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # there is no /proc: close all that there may be
        first = 3
        for kept in sorted({*numbers, os.sysconf("SC_OPEN_MAX")}):
            os.closerange(first, kept)
            first = kept + 1
        return
    for name in names:
        if int(name) > 2 and int(name) not in numbers:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the list itself
                continue
