"""The private directory of one broker: its shards' link sockets, its operator socket, and the proof that it is alive.

Mode 0700, made by the router under a base directory of the user, `<base>/<pid>-<random>`; the file `router.json` in it
says whose it is and is locked (flock) as long as that process lives, however it dies. Whoever starts next removes the
directories of dead routers. Flat: it holds files and sockets only. Called by the router, and by a shard whose router
has died, to leave nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable

import msgspec

OWNER_FILE = "router.json"
OPERATOR_SOCKET = "operator.sock"
_BASE_LOCK = ".lock"

# sun_path holds 108 bytes with its NUL; the longest name in the directory is a link socket's.
LONGEST_PATH_BYTES = 107
LONGEST_NAME = "/63.0123456789abcdef.sock"
_LONGEST_OWN_NAME = "4194304-012345"


class LinkDirectoryError(Exception):
    """The base directory is not usable; the text says why and what to do."""


class Owner(msgspec.Struct, frozen=True):
    """Who a directory belongs to."""

    pid: int
    port: int  # clients' port
    server_name: str = ""


def default_base() -> str:
    """$XDG_RUNTIME_DIR/gnatswarm where there is one, else gnatswarm-<uid> in $TMPDIR or /tmp.

    One that is too long for Unix sockets is passed over, so that whoever looks for brokers looks in the same place.
    """
    candidates = []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        candidates.append(os.path.join(os.path.abspath(runtime), "gnatswarm"))
    temporary = f"gnatswarm-{os.geteuid()}"
    if os.environ.get("TMPDIR"):
        candidates.append(os.path.join(os.path.abspath(os.environ["TMPDIR"]), temporary))
    candidates.append(os.path.join("/tmp", temporary))
    fitting = [path for path in candidates if _longest_path_bytes(os.path.join(path, _LONGEST_OWN_NAME)) == 0]
    return fitting[0] if fitting else candidates[-1]


class LinkDirectory:
    """A fresh directory of this process, and the lock that proves it alive. LinkDirectoryError when impossible."""

    def __init__(self, base: str, owner: Owner, announce: Callable[[str], None] = lambda path: None) -> None:
        self.path = os.path.join(os.path.abspath(base), f"{owner.pid}-{os.urandom(3).hex()}")
        longest = _longest_path_bytes(self.path)
        if longest:
            raise LinkDirectoryError(
                f"{base!r} is too long for Unix sockets: a path in it would have {longest} bytes, the limit is "
                f"{LONGEST_PATH_BYTES}. Choose a shorter link_dir, or a shorter XDG_RUNTIME_DIR"
            )
        try:
            _private_directory(base)
            # Nobody looks for dead routers while this one is not locked yet.
            with _LockedBase(base):
                remove_stale(base)
                announce(self.path)  # before it is there: who removes it when we die may not miss it
                os.mkdir(self.path, 0o700)
                owner_path = os.path.join(self.path, OWNER_FILE)
                self._fd = os.open(owner_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._fd, msgspec.json.encode(owner))
        except OSError as error:
            raise LinkDirectoryError(f"cannot make a private directory in {base!r}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the directory with all that is in it, then give the lock up."""
        remove(self.path)
        os.close(self._fd)


def _longest_path_bytes(directory: str) -> int:
    """0 when every socket in this directory can be bound, else the length that is too much."""
    longest = len(os.fsencode(directory + LONGEST_NAME))
    return longest if longest > LONGEST_PATH_BYTES else 0


class _LockedBase:
    def __init__(self, base: str) -> None:
        self._path = os.path.join(base, _BASE_LOCK)

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def remove(path: str) -> None:
    """Remove a link directory; others may be removing it at the same time."""
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        try:
            os.unlink(os.path.join(path, name))
        except OSError:
            continue
    try:
        os.rmdir(path)
    except OSError:
        return


def remove_stale(base: str) -> list[str]:
    """Remove the directories of dead routers; which those were."""
    removed = []
    for path in _directories(base):
        if _live_owner(path) is None:
            remove(path)
            removed.append(path)
    return removed


def live(base: str) -> list[tuple[str, Owner]]:
    """(directory, owner) of every living router under this base."""
    found = []
    for path in _directories(base):
        owner = _live_owner(path)
        if owner is not None:
            found.append((path, owner))
    return found


def _directories(base: str) -> list[str]:
    try:
        with os.scandir(base) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _live_owner(path: str) -> Owner | None:
    """The owner, if its lock is held."""
    try:
        fd = os.open(os.path.join(path, OWNER_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            return msgspec.json.decode(os.read(fd, 65536), type=Owner)
        except msgspec.DecodeError:
            return Owner(pid=0, port=0)
    finally:
        os.close(fd)
    return None


def _private_directory(base: str) -> None:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(base)), exist_ok=True)
        os.mkdir(base, 0o700)
        return
    except FileExistsError:
        pass
    found = os.lstat(base)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise LinkDirectoryError(
            f"{base!r} must be a directory of this user with mode 0700, because whoever can write to it can speak for "
            f"a shard. Remove it or correct it, or choose another link_dir"
        )


def remove_socket(path: str) -> None:
    """Remove a dead shard's link socket; it may be gone already."""
    with contextlib.suppress(OSError):
        os.unlink(path)
