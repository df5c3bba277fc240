"""What the child processes of a broker have in common: signals that are not for them, and their environment.

Imports nothing of ours, because the keeper needs it before it starts the router.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would slow the start
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the same numbers; `signal` makes enumerations of them, and the port is open before

# The signals on which a broker acts. The keeper takes them; terminals, `timeout` and service managers send some of them
# to the whole process group, and a shard that one of them ended would lose its open window of statistics.
HANDLED_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def child_environment() -> dict[str, str]:
    """Our environment; from a source tree with the package's path in PYTHONPATH, because of -P."""
    environment = dict(os.environ)
    root = os.path.abspath(__file__).rsplit(os.sep, __name__.count(".") + 1)[0]
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        before = environment.get("PYTHONPATH", "")
        if root not in before.split(os.pathsep):
            environment["PYTHONPATH"] = root + os.pathsep + before if before else root
    return environment
