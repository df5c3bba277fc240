"""The private directory of one broker: its shards' link sockets, its operator socket, and locks that prove it alive.

Mode 0700, made by the router as `<base>/<pid>-<random>`, where the base directory is the user's; the file
`router.json` in it names the keeper. The directory and that file are locked (flock) while the broker lives, and the
kernel releases the locks however it dies. The next router that starts removes the directories of dead ones. Locks and
fresh times keep programs away that delete old files; what is removed nevertheless, `mend()` makes again under the same
names. It holds only files and sockets, no directories. What else is in it or beside it may be somebody's: only
directories and files with our names are ever removed. The keeper holds the locks, too, so they outlive a router that is
replaced. Called by the router, and by the keeper at the broker's end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

OWNER_FILE = "router.json"
OPERATOR_SOCKET = "operator.sock"
_BASE_LOCK = ".lock"

# sun_path holds 108 bytes with its NUL; the longest name in the directory is a link socket's.
LONGEST_PATH_BYTES = 107
LONGEST_NAME = "/63.0123456789abcdef.sock"
_LONGEST_OWN_NAME = "4194304-012345"
_RANDOM_SUFFIX = "-012345"
_SOCKETS = ("sock", "mv")
_HEX_DIGITS = frozenset("0123456789abcdef")

# Cleaners remove what nobody has touched for days, some for hours.
TOUCH_EVERY_S = 600.0


class LinkDirectoryError(Exception):
    """The base directory is not usable; the text says why and what to do."""


class Owner(msgspec.Struct, frozen=True):
    """The router that owns a link directory; the content of `router.json`."""

    pid: int
    port: int  # clients' port
    server_name: str = ""


def default_base() -> str:
    """$XDG_RUNTIME_DIR/gnatswarm where that directory is writable, else gnatswarm-<uid> in $TMPDIR or /tmp.

    A $TMPDIR that is not there, or a path that is too long for Unix sockets, is skipped, so that commands look for
    brokers in the same place. When another user owns the name gnatswarm-<uid> there, a random suffix is added to ours.
    """
    return _candidates()[0][0]


def bases() -> list[str]:
    """Every base directory in which brokers of this user may be."""
    plain, parent, name = _candidates()[0]
    found = {plain}
    if name:
        found.update(_own_with_suffix(parent, name))
    return sorted(found)


def _candidates() -> list[tuple[str, str, str]]:
    """(base, shared parent directory, plain name in it), best first; parent and name are "" for the user's own one."""
    candidates = []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        candidates.append((os.path.join(os.path.abspath(runtime), "gnatswarm"), "", ""))
    temporary = f"gnatswarm-{os.geteuid()}"
    for parent in (os.environ.get("TMPDIR"), "/tmp"):
        if parent and (parent == "/tmp" or os.path.isdir(parent)):
            parent = os.path.abspath(parent)
            candidates.append((_ours(parent, temporary), parent, temporary))
    fitting = [one for one in candidates if _longest_path_bytes(os.path.join(one[0], _LONGEST_OWN_NAME)) == 0]
    return fitting or candidates[-1:]


def _ours(parent: str, name: str) -> str:
    """The base of that name; with a random suffix when another user owns the plain name."""
    plain = os.path.join(parent, name)
    with contextlib.suppress(OSError):
        if os.lstat(plain).st_uid != os.geteuid():
            made = _own_with_suffix(parent, name)
            return made[0] if made else f"{plain}-{os.urandom(3).hex()}"
    return plain


def _own_with_suffix(parent: str, name: str) -> list[str]:
    """The existing bases of this user whose names have a random suffix."""
    found = []
    try:
        with os.scandir(parent) as entries:
            for entry in entries:
                is_named = entry.name.startswith(f"{name}-") and len(entry.name) == len(name) + len(_RANDOM_SUFFIX)
                if is_named and _is_private(entry.path):
                    found.append(entry.path)
    except OSError:
        return []
    return sorted(found)


class LinkDirectory:
    """A new directory of this process, with the locks that prove it alive. Raises LinkDirectoryError."""

    def __init__(self, base: str, owner: Owner, announce: Callable[[str], None] = lambda path: None) -> None:
        self._base = os.path.abspath(base)
        self._owner = owner
        # Descriptors locked while we live: base (a shared lock), directory, owner file. -1: not held.
        self._base_fd = self._fd = self._file_fd = -1
        self._touched_at = time.monotonic()
        self.path = os.path.join(self._base, f"{owner.pid}-{os.urandom(3).hex()}")
        longest = _longest_path_bytes(self.path)
        if self._base != self._base.encode("utf-8", "replace").decode():
            raise LinkDirectoryError(
                f"the path {self._base!r} is no UTF-8, as messages between our processes are: choose another "
                "XDG_RUNTIME_DIR or link_dir"
            )
        if longest:
            raise LinkDirectoryError(
                f"{base!r} is too long for Unix sockets: a path in it would have {longest} bytes, the limit is "
                f"{LONGEST_PATH_BYTES}. Choose a shorter link_dir, or a shorter XDG_RUNTIME_DIR"
            )
        try:
            _private_directory(self._base)
            # This lock keeps others from looking for dead routers until our own locks are held.
            with _LockedBase(self._base):
                remove_stale(self._base)
                announce(self.path)  # before it exists: the keeper, which removes it when we die, must know it by then
                os.mkdir(self.path, 0o700)
                self._hold(waits=True)
        except OSError as error:
            self._let_go()
            raise LinkDirectoryError(f"cannot make a private directory in {base!r}: {error.strerror}") from None

    @classmethod
    def taken_over(cls, path: str, owner: Owner, descriptors: Sequence[int]) -> LinkDirectory:
        """One that another process of this broker has made, with its locks: those of `descriptors`."""
        taken = cls.__new__(cls)
        taken._base, taken._owner, taken.path = os.path.dirname(path), owner, path
        taken._base_fd, taken._fd, taken._file_fd = descriptors
        taken._touched_at = time.monotonic()
        return taken

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Those that have the locks: of the base, of the directory and of the owner's file; -1: not held now."""
        return self._base_fd, self._fd, self._file_fd

    def names(self) -> set[str]:
        """Names of the files in it now; OSError when the directory is gone."""
        return set(os.listdir(self.path))

    def mend(self) -> list[str]:
        """Make directory and owner file again if they were removed, but not the sockets; returns the missing paths.

        To be called several times a second. LinkDirectoryError when that fails; the next call tries again.
        """
        self._touch()
        removed = []
        try:
            if not _is_held(self._base, self._base_fd):
                _private_directory(self._base)
            if not _is_held(self.path, self._fd):
                removed.append(self.path)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            elif not self._has_owner_file():
                removed.append(self._owner_path)
            # A router that starts at this moment may take it for a dead one's and remove it: the next call mends that.
            self._hold(waits=False)
        except OSError as error:
            raise LinkDirectoryError(f"cannot make {self.path} again: {error.strerror}") from None
        return removed

    def remove(self) -> None:
        """Remove the directory and everything in it, then release the locks."""
        remove(self.path)
        self._let_go()

    @property
    def _owner_path(self) -> str:
        return os.path.join(self.path, OWNER_FILE)

    def _hold(self, *, waits: bool) -> None:
        """Open and lock base, directory and owner file where that is not done yet; writes the owner file."""
        if not _is_held(self._base, self._base_fd):
            self._base_fd = _replaced(self._base_fd, _locked(self._base, fcntl.LOCK_SH, waits=waits))
        if not _is_held(self.path, self._fd):
            self._fd = _replaced(self._fd, _locked(self.path, fcntl.LOCK_EX, waits=waits))
        if not _is_held(self._owner_path, self._file_fd):
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
            self._file_fd = _replaced(self._file_fd, _locked(self._owner_path, fcntl.LOCK_EX, flags, waits=waits))
        if not self._has_owner_file():
            content = msgspec.json.encode(self._owner)
            if os.write(self._file_fd, content) != len(content):
                os.ftruncate(self._file_fd, 0)
                os.lseek(self._file_fd, 0, os.SEEK_SET)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _has_owner_file(self) -> bool:
        """Whether it is there with its content, which could not be written if the disk was full."""
        return _is_held(self._owner_path, self._file_fd) and os.fstat(self._file_fd).st_size > 0

    def _let_go(self) -> None:
        for fd in (self._file_fd, self._fd, self._base_fd):
            if fd >= 0:
                os.close(fd)
        self._base_fd = self._fd = self._file_fd = -1

    def _touch(self) -> None:
        """Every TOUCH_EVERY_S, for cleaners that look at times and not at locks."""
        now = time.monotonic()
        if now - self._touched_at >= TOUCH_EVERY_S:
            self._touched_at = now
            self.touch()

    def touch(self) -> None:
        """Set the times of the directory, of its files and of its base to now."""
        for path in (self._base, os.path.join(self._base, _BASE_LOCK), self.path, *self._inside()):
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)

    def _inside(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                yield os.path.join(self.path, name)


def _locked(path: str, how: int, flags: int = os.O_RDONLY | os.O_DIRECTORY, *, waits: bool) -> int:
    """A descriptor of the path, with that lock. BlockingIOError when `waits` is False and it is locked already.

    A process that only tests the lock holds it for a moment. systemd-tmpfiles skips directories that are locked. Some
    file systems (NFS) can lock only files: there the directory stays unlocked.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how if waits else how | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError) or not flags & os.O_DIRECTORY:
            os.close(fd)
            raise
    return fd


def _replaced(old: int, new: int) -> int:
    if old >= 0:
        os.close(old)
    return new


def _is_held(path: str, fd: int) -> bool:
    """Whether the file at this path is the one that this descriptor has open."""
    if fd < 0:
        return False
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return False


def _longest_path_bytes(directory: str) -> int:
    """0 when every socket in this directory can be bound, else the length of the path that is too long."""
    longest = len(os.fsencode(directory + LONGEST_NAME))
    return longest if longest > LONGEST_PATH_BYTES else 0


class _LockedBase:
    def __init__(self, base: str) -> None:
        self._path = os.path.join(base, _BASE_LOCK)

    def __enter__(self) -> None:
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if _is_held(self._path, self._fd):
                return
            os.close(self._fd)  # removed while we waited: others lock a new file by now

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def remove(path: str) -> None:
    """Remove a link directory; others may be removing it at the same time. It stays while something is not ours."""
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        if not _is_our_file(name):
            continue
        try:
            os.unlink(os.path.join(path, name))
        except OSError:
            continue
    try:
        os.rmdir(path)
    except OSError:
        return


def remove_left(path: str, pid: int) -> None:
    """Remove what this broker has left: a link directory, or a file that names its pid (pid file, ports file).

    A file that another broker has replaced stays, and a directory where a file should have been.
    """
    if os.path.isdir(path):
        if is_directory_of(pid, path):
            remove(path)
        return
    with contextlib.suppress(OSError, ValueError):
        if not stat.S_ISREG(os.lstat(path).st_mode):  # a named pipe would be waited for
            return
        if not path.endswith(f"_{pid}.ports"):
            with open(path) as stream:
                if stream.read(64) != str(pid):
                    return
        os.unlink(path)


def is_directory_of(pid: int, path: str) -> bool:
    """Whether this is a link directory, by its name, of the broker with this pid."""
    name = os.path.basename(path)
    return _is_link_directory(name) and name.startswith(f"{pid}-") and os.path.isdir(path)


def _is_link_directory(name: str) -> bool:
    pid, _, rest = name.partition("-")
    return pid.isdecimal() and len(rest) == len(_RANDOM_SUFFIX) - 1 and _HEX_DIGITS.issuperset(rest)


def _is_our_file(name: str) -> bool:
    number, _, rest = name.partition(".")
    boot_id, _, kind = rest.partition(".")
    is_socket = number.isdecimal() and _HEX_DIGITS.issuperset(boot_id) and kind in _SOCKETS
    return is_socket or name in (OWNER_FILE, OPERATOR_SOCKET)


def remove_stale(base: str) -> list[str]:
    """Remove the directories of dead routers; returns their paths."""
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
            return sorted(
                entry.path
                for entry in entries
                if _is_link_directory(entry.name) and entry.is_dir(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def _live_owner(path: str) -> Owner | None:
    """The owner, if the directory or the owner file in it is locked; else None."""
    is_locked = _is_locked(path)
    try:
        fd = os.open(os.path.join(path, OWNER_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return _named_owner(path) if is_locked else None
    try:
        if not (is_locked or _is_fd_locked(fd)):
            return None
        return msgspec.json.decode(os.read(fd, 65536), type=Owner)
    except msgspec.DecodeError:  # it is being written
        return _named_owner(path)
    finally:
        os.close(fd)


def _named_owner(path: str) -> Owner:
    """The owner as far as the directory's name tells; used while its file is missing or being written."""
    pid = os.path.basename(path).partition("-")[0]
    return Owner(pid=int(pid) if pid.isdecimal() else 0, port=0)


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _is_fd_locked(fd)
    finally:
        os.close(fd)


def _is_fd_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this file system can lock only files
        return False
    return False


def _is_private(path: str) -> bool:
    """Whether this is a directory of this user that no other user may enter."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _private_directory(base: str) -> None:
    try:
        os.makedirs(os.path.dirname(base), exist_ok=True)
        os.mkdir(base, 0o700)
        return
    except FileExistsError:
        pass
    if not _is_private(base):
        raise LinkDirectoryError(
            f"{base!r} must be a directory of this user with mode 0700, because whoever can write to it can speak for "
            f"a shard. {_whose(base)}"
        )


def _whose(base: str) -> str:
    """Advice to the operator about a base that is not a private directory of this user."""
    try:
        uid = os.lstat(base).st_uid
    except OSError:
        uid = os.geteuid()
    if uid == os.geteuid():
        return "Remove it or correct it, or choose another link_dir"
    return f"It is user {uid}'s: choose another link_dir, or set XDG_RUNTIME_DIR to a directory of your own"


def path_for_moves(link_path: str) -> str:
    """Where the shard with this link socket takes clients that move to it: no longer than that path."""
    return link_path.removesuffix(".sock") + ".mv"


def remove_sockets(link_path: str) -> None:
    """Remove the sockets of a dead shard that are still there: the link socket, and the one for moves."""
    for path in (link_path, path_for_moves(link_path)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_sockets_but(directory: str, boot_ids: set[str]) -> None:
    """Remove the sockets in this private directory that are of no shard with one of these boot ids."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            boot_id = name.split(".")[1:2]
            if _is_our_file(name) and name not in (OWNER_FILE, OPERATOR_SOCKET) and boot_ids.isdisjoint(boot_id):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(directory, name))
