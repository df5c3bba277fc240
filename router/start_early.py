"""Opens the ports of a broker before its router is forked, if its configuration is known to be valid.

What `router.listening.head_start` accepts is opened at once. Of any other configuration options are made here first, in
the process that shards are forked from, and nothing else is imported. So a configuration with a mistake still fails
before anything listens. Whatever goes wrong here, or may take long, is left to `router.supervision.opening`, in the
router, which says why. Called by the command line.
"""

from __future__ import annotations

from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.head_start import HeadStart, can_log, is_looked_up_at_once, open_ports, simple
from gnatswarm.router.listening.listeners import ListenError, Ports

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    from gnatswarm.router.config.conf import Parsed
    from gnatswarm.router.config.flags import CommandLine


def start_early(line: CommandLine) -> HeadStart | None:
    """Open the ports of this command line and file; None: that is left to the router."""
    parsed = None
    if line.config_file:
        from gnatswarm.router.config.simple_file import parsed_file

        parsed = parsed_file(line.config_file)
        if parsed is None:
            return None
    wished = simple(line, parsed)
    return _with_options(line, parsed) if wished is None else open_ports(wished)


def _with_options(line: CommandLine, parsed: Parsed | None) -> HeadStart | None:
    """The same by options that are made here."""
    if line.words:
        return None
    from gnatswarm.keeper import import_formats

    import_formats()
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build_parsed
    from gnatswarm.router.supervision import descriptors
    from gnatswarm.router.supervision.opening import CannotStart, wanted_shards

    try:
        options = build_parsed(parsed, line).options
    except ConfigError:
        return None
    hosts = [options.host, options.http_host, options.websocket.host]
    hosts += [host for host, _port in options.server_ports.values()]
    logging = options.logging
    if logging.syslog or logging.remote_syslog or not all(map(is_looked_up_at_once, hosts)):
        return None
    if not can_log(logging.file):
        return None
    monitor = None
    try:
        descriptors.raise_limit()
        shards = wanted_shards(options)
        monitor = monitor_socket.listen(options, early=True)
        return HeadStart(Ports.open(options, shards, early=True), monitor, options=options)
    except (CannotStart, ListenError):
        if monitor is not None:
            monitor.close()
        return None
