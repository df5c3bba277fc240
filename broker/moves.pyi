from typing import Protocol, final

from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.frozen import FrozenClient, OfferedClient
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.reroutes import Reroutes

MOST_CLIENTS: int
MOST_SUBSCRIPTIONS: int
SLICE_SUBS: int
PART_BYTES: int
MOST_PART_BYTES: int
WINDOW: int
AT_ONCE: int
MOST_UNSENT_BYTES: int

class MovesHost(Protocol):
    """What the engine cannot do itself when connections move: sessions, sockets, and the way between two shards.

    That way carries, in order, for each move: hand_over()s, then ended(). When it ends (the old shard is dead) the new
    shard's host says Moves.end_arrivals(old).
    """

    def soon(self) -> None:
        """There is work for Moves.go_on(), which is to be called in turns of the event loop until there is no more.

        Not at once: the caller goes on. Then what was appended to links is to be sent.
        """

    # ---- at the old shard
    def words_of(self, client: ClientConnection, /) -> bytes:
        """Who the client is, for admit() of the new shard."""

    def hand_over(self, new: int, id: int, client: ClientConnection, frozen: FrozenClient | None, /) -> None:
        """Send its record and its descriptor to the new shard, which calls Moves.arrive(); then leave() here.

        The connection is not closed. None: it has gone, or is being closed; the new shard calls Moves.forget(). That
        may be said while others of the move are still waited for, and then again.
        """

    def ended(self, new: int, id: int, why: str, /) -> None:
        """The move is over. With a reason, clients that were not handed over are read again here, if not closed.

        Then the new shard is told to call Moves.end_arrivals(old, id).
        """

    # ---- at the new shard
    def admit(self, old: int, id: int, offered: OfferedClient, /) -> ClientConnection:
        """A fresh connection with this cid, its session, account, permissions and limits, and no socket.

        RecordRefused: it cannot be taken; then the whole batch stays where it is.
        """

    def arrived(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient, /) -> None:
        """Its output is in order: attach the socket, give it the rights that hold now, and call its go_on().

        It may have to be closed already (close_reason).
        """

    def lost(self, old: int, id: int, client: ClientConnection, frozen: FrozenClient | None, why: str, /) -> None:
        """It does not come, and has left. With a record: it is here already, and its socket must be closed."""

@final
class Moves:
    host: MovesHost | None
    slice_subs: int  # so many subscriptions are written down, made, ended or settled in one go_on()
    window: int  # so many parts of an offer are sent before the new shard has taken one
    def __init__(self, mesh: Mesh, fence: MeshFence, reroutes: Reroutes) -> None: ...
    @property
    def is_leaving(self) -> bool: ...
    @property
    def is_busy(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def n_arriving(self) -> int: ...
    @property
    def n_heard(self) -> int: ...
    @property
    def n_moved(self) -> int: ...
    @property
    def n_arrived(self) -> int: ...
    @property
    def n_stopped(self) -> int: ...
    @property
    def n_lost(self) -> int: ...
    def why_not(self, client: ClientConnection) -> str | None: ...
    def fitting(self, clients: list[ClientConnection]) -> int: ...
    def move(self, clients: list[ClientConnection], shard: int) -> int: ...
    def stop(self) -> None: ...
    @property
    def departing(self) -> list[ClientConnection]: ...
    def on_hung_up(self, client: ClientConnection) -> None: ...
    def go_on(self) -> bool: ...
    def send_on(self) -> None: ...
    def arrive(self, old: int, id: int, frozen: FrozenClient) -> bool: ...
    def forget(self, old: int, id: int, cid: int) -> None: ...
    def end_arrivals(self, old: int, id: int = 0) -> None: ...
    @property
    def gone(self) -> dict[tuple[int, int], set[int]]: ...
    @property
    def n_slices(self) -> int: ...
    def remote_members(self, key: tuple[int, bytes, bytes, bytes]) -> int: ...
