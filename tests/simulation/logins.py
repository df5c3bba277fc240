"""How clients log in where a schedule has them send CONNECT again: the real session, with an owner for each shard.

Each user of the options is a choice of an account and of a row of RIGHTS. Not here: who is in which shard, what clients
may expect (world, promises).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import orjson

from gnatswarm.broker.access.auth import Authenticator
from gnatswarm.broker.access.user_index import UserIndex
from gnatswarm.broker.connection import ClientConnection
from gnatswarm.broker.errors import CloseReason, ProtocolError
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.options import Options, User
from gnatswarm.probes.engine import Probe, ProbeSocket
from gnatswarm.shards.clients.moved import FrozenSession
from gnatswarm.shards.clients.rights import Rights
from gnatswarm.shards.clients.session import ClientSession
from tests.simulation.tenants import RIGHTS
from tests.support.engine import Engine, EngineClient

PASSWORD = "p"
KIND = "nats"
RTT_US = 1000


def options_with_users(
    options: Options, accounts: tuple[str, ...], limits: Limits, rights_of: dict[str, int]
) -> Options:
    """The same options, and for each account as many users as there are rows of RIGHTS.

    The rights of each are those of its number, or of `rights_of` its name.
    """
    names = [(account, user_name(account, number), number) for account in accounts for number in range(len(RIGHTS))]
    users = tuple(
        User(name, PASSWORD, account=account, permissions=RIGHTS[rights_of.get(name, number)])
        for account, name, number in names
    )
    return msgspec.structs.replace(options, users=users, limits=limits)


def user_name(account: str, rights: int) -> str:
    return f"{account}.{rights}"


class Wishes(NamedTuple):
    """What a client asks for in CONNECT."""

    echo: bool = True
    headers: bool = True
    no_responders: bool = True
    verbose: bool = False
    pedantic: bool = False


def connect_line(wishes: Wishes, user: str = "", *, is_good: bool = True) -> bytes:
    """A CONNECT; `is_good`: with the user's password."""
    words: dict[str, object] = dict(wishes._asdict())
    if user:
        words |= {"user": user, "pass": PASSWORD if is_good else "wrong"}
    return b"CONNECT " + orjson.dumps(words) + b"\r\n"


class Uncounted:
    """Takes the place of the census: nothing here has a limit."""

    def move(self, session: ClientSession, account: str, most: int) -> None:
        pass

    def stay(self, session: ClientSession, most: int) -> None:
        pass


class RecordedSocket:
    """Takes the place of the socket's record, which is the swarm's matter."""

    opened = 0

    def freeze(self) -> None:
        pass

    def kick(self, reason: CloseReason) -> None:
        raise AssertionError(f"a client is closed: {reason}")


class Login(ClientSession):
    """One client's session at one shard."""

    errors: list[ProtocolError]
    turns: int

    def __init__(self, owner: Owner, cid: int, *, must_authenticate: bool) -> None:
        self.errors = []
        self.ends_at_once = owner.ends_at_once
        super().__init__(owner, cid, "h", 1, kind=KIND, nonce=b"", must_authenticate=must_authenticate)  # type: ignore[arg-type]
        self.socket = RecordedSocket()  # type: ignore[assignment]
        self.on_entered: Callable[[], None] = lambda: None

    def on_error(self, error: ProtocolError) -> None:
        """Keep the error, too."""
        self.errors.append(error)
        super().on_error(error)

    def end_some(self, most: int) -> None:
        """A few in each turn."""
        super().end_some(min(most, self.ends_at_once))

    def _become(self, options: Any, admission: Any) -> None:
        super()._become(options, admission)
        self.on_entered()


class Owner:
    """What the sessions of one shard share: see shards.clients.session.SessionOwner."""

    maps_certificates: frozenset[str] = frozenset()
    keeps_names: frozenset[str] = frozenset()
    has_nkeys = False
    relay = None

    def __init__(
        self,
        probe: Probe,
        options: Options,
        *,
        is_like_newer: bool,
        ends_at_once: int,
        call_soon: Callable[..., object],
        on_turn_over: Callable[[ClientSession], None],
    ) -> None:
        """`ends_at_once`: so many subscriptions end in one turn."""
        assert probe.mesh is not None
        self.ends_at_once = ends_at_once
        self._probe = probe
        self._call_soon = call_soon
        self.on_turn_over = on_turn_over  # others are to be served before its next turn begins
        self.is_like_newer = is_like_newer
        self.authenticators = {KIND: Authenticator(options)}
        self.rights = Rights(options, probe.mesh)
        self.users = UserIndex(options.users)
        self.certificate_rules = {KIND: None}
        self.census = Uncounted()
        self._mesh = probe.mesh
        self.opened: ProbeSocket | None = None  # the socket of the session that was made last
        self._is_expected = False

    def reload(self, options: Options) -> None:
        """Apply these options: readmit() follows for each client."""
        self.authenticators = {KIND: Authenticator(options)}
        self.rights = Rights(options, self._mesh, self.rights)

    def readmit(self, login: Login) -> None:
        """As Clients, after a reload."""
        assert login.admission is not None
        identity = self.authenticators[KIND].readmit(login.admission)
        assert identity is not None and login.reenter(identity)

    def allowance_of(self, session: ClientSession, user: str, account: str) -> None:
        """Users may publish as much as they want to."""

    def log_in(self) -> tuple[Login, ProbeSocket]:
        """A new client, which is to send CONNECT."""
        login = Login(self, 0, must_authenticate=True)
        assert self.opened is not None
        socket, self.opened = self.opened, None
        login.connection.estimate_rtt(RTT_US)  # else it follows from the clock
        return login, socket

    def expect(self, cid: int, who: FrozenSession) -> Login:
        """The session of a client that is announced by another shard. RecordRefused."""
        self._is_expected = True
        login = Login(self, cid, must_authenticate=False)
        self._is_expected = False
        login.thaw(who)
        return login

    def new_connection(self, session: ClientSession, cid: int, *, must_authenticate: bool) -> ClientConnection:
        """As SessionOwner; a client that has just come is given a socket, too."""
        if self._is_expected:
            return self._probe.connection(cid, session)
        self.opened = self._probe.open(session, must_authenticate=must_authenticate)
        return self.opened.connection

    def end_soon(self, session: ClientSession) -> None:
        """In the next turn."""
        self._call_soon(self._end_some, session)

    def _end_some(self, session: ClientSession) -> None:
        if session.connection.is_closing:
            return
        session.end_some(self.ends_at_once)
        if session.connection.is_ending:
            self.end_soon(session)

    def finish_soon(self) -> None:
        """The swarm finishes each turn."""

    def note_refused(self) -> None:
        """Nothing is counted."""

    def note_denied(self, account: str, user: str, *, is_publish: bool) -> None:
        """Nothing is counted."""

    def on_refused(self, session: ClientSession) -> None:
        """Nothing is said of it."""

    def on_connected(self, session: ClientSession, before: str = "", *, is_announced: bool = True) -> None:
        """Nothing is said of it."""

    def on_system_request(self, session: ClientSession, subject: bytes, reply: bytes, payload: bytes) -> bool:
        """No subject here is the system's."""
        return False

    def info_of_connected(self, session: ClientSession) -> bytes:
        """No client here has a protocol that is told of it."""
        return b""


class LoginClient(EngineClient):
    """A client with a real session."""

    session: Login  # type: ignore[assignment]

    def __init__(self, engine: Engine, owner: Owner, connect: bytes) -> None:
        self.engine = engine
        self._taken = 0
        self.session, self.socket = owner.log_in()
        if connect:
            self.feed(connect)
