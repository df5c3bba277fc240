"""`python -P -m router.owned FD …`: the command for a program that starts a broker of its own and takes it along.

FD is a pipe whose other end that program holds: when it ends, however it does, the broker stops. (PR_SET_PDEATHSIG
would be tied to the thread that started it.) Everything behind FD is the command line of `gnatswarm`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from router.zygote import GROUP_SIGNALS


def watch(fd: int) -> None:
    """Stop this process, as SIGINT does, at the end of the pipe; waits for it on a thread."""
    # Before the thread is made, which inherits it: signals are for the main thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*GROUP_SIGNALS, signal.SIGTERM))

    def wait() -> None:
        while os.read(fd, 64):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="owner", daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run the command; its exit code."""
    if not arguments or not arguments[0].isdigit():
        print("gnatswarm: router.owned is started by programs; run `gnatswarm`", file=sys.stderr)
        return 2
    fd = int(arguments[0])
    os.set_inheritable(fd, False)
    watch(fd)
    from router.cli import main as command

    return command(arguments[1:], program="gnatswarm")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
