"""Serving: one broker's life as a process, from its options to its exit code.

Composes the broker, its companions and its supervisor; sets up what they need, and tears it down in order.
Called by the command line.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gnatswarm.broker.options import Options
from gnatswarm.router.greeting import greet
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listeners import ListenError
from gnatswarm.router.supervision import descriptors
from gnatswarm.router.supervision.opening import CannotStart, Opened
from gnatswarm.shards.boundary import logs

if TYPE_CHECKING:
    from gnatswarm.router.companions import Companions
    from gnatswarm.router.listening.head_start import HeadStart
    from gnatswarm.router.listening.inherited import Inherited
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.record import Left
    from gnatswarm.router.supervision.supervisor import Supervisor
    from gnatswarm.shards.boundary.keeping import Post

log = logging.getLogger("gnatswarm.router")


def serve(
    options: Options | None,
    *,
    program: str,
    post: Post,
    reparse: Callable[[Options], Options] | None = None,
    command: Sequence[str] = (),
    inherited: Inherited | None = None,
    begun: HeadStart | None = None,
    notifier: Notifier | None = None,
    own: Sequence[str] = (),
) -> int:
    """Run one broker until it stops; the exit code: 0 after SIGINT or lame duck mode, 1 after SIGTERM or a failure.

    `options` are None where a dead router has left a broker, with its options. `program` is the name we were called by,
    `post` what we got from the keeper. `reparse` reads the configuration again for SIGHUP, and may raise ConfigError,
    OSError or ValueError. `command` replaces the command that runs a shard (tests). `inherited` are sockets to use in
    place of our own, `begun` ports that are open already; `notifier` tells a service manager. `own` is the command that
    runs this program.
    """
    opened = None
    if post.legacy is None:
        assert options is not None
        try:
            logs.configure(options.logging, process_label=logs.ROUTER_LABEL, pid=post.keeper_pid)
        except OSError as error:
            logs.fatal_line(logs.failure(options.logging, error))
            return 1
        descriptors.raise_limit()
        try:
            opened = Opened(options, inherited, begun)
        except CannotStart as error:
            log.critical("%s", error)
            return 1
    # The rest is imported now: who connects meanwhile waits in a listener's queue.
    from gnatswarm.router.companions import Companions
    from gnatswarm.router.supervision.broker import SupervisedBroker
    from gnatswarm.router.supervision.keeper_link import KeeperLink
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.router.supervision.record import Left, RecordError
    from gnatswarm.router.supervision.supervisor import Supervisor

    keeper = KeeperLink(post)
    left = None
    if keeper.legacy is not None:
        try:
            left = Left.read(keeper.legacy)
        except RecordError as error:
            logs.fatal_line(f"The router died ({keeper.legacy.reason}), and cannot be replaced: {error}")
            return 1
        options = left.options
        # Where another router did, or where that is not possible any more, elsewhere until it is.
        logs.configure(options.logging, process_label=logs.ROUTER_LABEL, pid=keeper.pid, must_open=False)
        descriptors.raise_limit()
    assert options is not None
    notifier = notifier or Notifier()
    notifier.send_by(keeper.notify)
    try:
        broker = SupervisedBroker(options, program=program, keeper=keeper, command=command, opened=opened, left=left)
    except CannotStart as error:
        log.critical("%s", error)
        return 1
    companions = Companions(broker, notifier, reparse=reparse, own=own)
    supervisor = Supervisor(broker, notifier=notifier, audience=companions)
    try:
        exit_code = (
            _start(broker, supervisor, companions, program, own)
            if left is None
            else _go_on(broker, supervisor, companions, left, keeper.legacy.reason if keeper.legacy else "")
        )
    except (CannotStart, ListenError) as error:
        log.critical("%s", error)
        exit_code = -1
    except Exception:
        # Not the broker's end: the keeper starts another router. Without clean-up, which would end the shards.
        log.critical("unexpected error", exc_info=True)
        logs.exit_now(70)  # EX_SOFTWARE
    supervisor.close()
    if exit_code < 0:
        return 1
    log.info("Server Exiting..")
    return exit_code


def _start(
    broker: SupervisedBroker, supervisor: Supervisor, companions: Companions, program: str, own: Sequence[str]
) -> int:
    """Start a broker, and serve until it ends."""
    options = broker.options
    greet(options, program, broker.server_id, broker.server_name)
    supervisor.start()
    # The keeper is still importing, so what is imported here costs no time. Later the shards would wait for it, which
    # begin to serve when they have been told of each other.
    import asyncio  # noqa: F401

    import uvloop  # noqa: F401

    from gnatswarm.router.companions import import_companions

    import_companions()
    if broker.monitor_socket is not None:
        import gnatswarm.router.monitoring.monitor

    if program != "nats-server":
        import gnatswarm.router.commands.first_screen  # noqa: F401

    supervisor.meet()
    address = broker.listener_groups.clients.address
    if program != "nats-server":
        from gnatswarm.router.commands.first_screen import first_screen, show

        is_open = not (options.is_locked or (options.tls.is_on and not options.allow_non_tls))
        accept = options.sharding.accept
        pids, like = broker.shard_pids, options.server_version
        show(first_screen(address, broker.pid, os.getpid(), pids, accept, like, is_open=is_open, own=own))
    for notice in options.notices:
        log.warning("%s", notice)
    scarcity = descriptors.scarcity(options, broker.wanted)
    if scarcity:
        log.warning("%s", scarcity)
    _announce_monitor(broker)
    broker.listener_groups.announce()
    return _run(supervisor, companions)


def _announce_monitor(broker: SupervisedBroker) -> None:
    """Before the line about clients, as in nats-server: who waits for that may ask; requests wait in the queue."""
    if broker.monitor_socket is not None:
        host, port = monitor_socket.address(broker.monitor_socket, broker.options)
        log.info("Starting %s monitor on %s:%d", monitor_socket.monitoring_scheme(broker.options), host, port)


def _go_on(broker: SupervisedBroker, supervisor: Supervisor, companions: Companions, left: Left, reason: str) -> int:
    """Take over the broker of a router that has died, and serve until it ends."""
    supervisor.take_over(left)
    if reason:
        log.error("The router died: %s; process %d goes on with its shards", reason, os.getpid())
    else:
        log.info("Process %d goes on as the router", os.getpid())
    _announce_monitor(broker)
    return _run(supervisor, companions)


def _run(supervisor: Supervisor, companions: Companions) -> int:
    import asyncio

    import uvloop

    # The collector was off during the imports, and need not look at what they have made.
    gc.freeze()
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(companions.run(supervisor))
