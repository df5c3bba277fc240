"""Links: who dials whom, who is let in, and what is said when one breaks; on Unix sockets, without a loop."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.fence import MeshFence
from gnatswarm.broker.link import SiblingLink
from gnatswarm.broker.mesh import Mesh
from gnatswarm.shards.boundary.control import LinkedShard
from gnatswarm.shards.links import links as module
from gnatswarm.shards.links.link_sockets import LinkSockets
from gnatswarm.shards.links.links import (
    HANDSHAKE_S,
    LINK_VERSION,
    LOOK_AT_LINK,
    LOOK_S,
    LOOKS_OF_THE_DIALLED,
    LOOKS_OF_THE_DIALLER,
    Hello,
    Links,
)
from gnatswarm.shards.sockets.reactor import Reactor

TURNS = 50  # Unix sockets deliver at once: what has not happened after so many will not happen


class Clock:
    """The loop's timers, which run when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.count = 0

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        self.soon.append((call, args))

    def call_later(self, after_s: float, call: Callable[..., object], *args: Any) -> None:
        self.count += 1
        self.timers.append((self.now_s + after_s, self.count, call, args))

    def pass_s(self, seconds: float) -> None:
        """Every timer until then, in its order."""
        until_s = self.now_s + seconds
        while due := sorted((one for one in self.timers if one[0] <= until_s), key=lambda one: one[:2])[:1]:
            self.timers.remove(due[0])
            self.now_s, _, call, args = due[0]
            call(*args)
        self.now_s = until_s


class NoReserve:
    """Reserves nothing, because the limit belongs to the whole test process."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        yield


class Sibling:
    """One shard's links and what they told of."""

    def __init__(self, number: int, clock: Clock, directory: Path, boot: str = "b") -> None:
        self.said: list[object] = []
        self.dead: list[int] = []  # siblings that were said to be dead
        fanout = Fanout()
        self.reactor = Reactor(fanout)
        self.mesh = mesh = Mesh(fanout, number)
        self.linked_shard = LinkedShard(number, f"{boot}{number}", str(directory / f"{number}.{boot}"))
        self.sockets = LinkSockets(
            clock,  # type: ignore[arg-type]
            self.reactor,
            path=self.linked_shard.path,
            reserve=NoReserve(),  # type: ignore[arg-type]
        )
        self.links = Links(
            loop=clock,  # type: ignore[arg-type]
            sockets=self.sockets,
            mesh=mesh,
            fence=MeshFence(mesh),
            hello=Hello("N", number, self.linked_shard.boot_id, LINK_VERSION),
            sink=self,
        )

    def on_ready(self) -> None:
        self.said.append("ready")

    def on_change(self, links: int) -> None:
        pass

    def on_gone(self, link: SiblingLink) -> None:
        pass

    def on_hole(self) -> None:
        self.said.append("hole")

    def on_doubt(self, sibling: int) -> int:
        return 0

    def on_dead(self, sibling: int) -> None:
        self.dead.append(sibling)

    def on_whole(self) -> None:
        self.said.append("whole")

    def on_given_up(self, why: str) -> None:
        self.said.append(why)

    @property
    def linked(self) -> list[int]:
        return [session.link.shard for session in self.links.sessions if session.link.is_synchronised]


class Swarm:
    """Several shards, their clock, and the router's messages."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.siblings: list[Sibling] = []

    def start(self, number: int) -> Sibling:
        self.siblings.append(Sibling(number, self.clock, self.directory))
        return self.siblings[-1]

    def tell(self, *siblings: Sibling) -> None:
        """Tell all of them that these are linked."""
        for sibling in siblings:
            sibling.links.on_linked_shards([one.linked_shard for one in siblings])
        self.run()

    def run(self) -> None:
        for _ in range(TURNS):
            soon, self.clock.soon = self.clock.soon, []
            for call, args in soon:
                call(*args)
            for sibling in self.siblings:
                sibling.reactor.turn()

    def pass_s(self, seconds: float) -> None:
        self.clock.pass_s(seconds)
        self.run()

    def cut(self, sibling: Sibling) -> None:
        """Its only link breaks."""
        [session] = sibling.links.sessions
        assert session.socket is not None
        session.socket.kick(CloseReason.READ_ERROR)
        sibling.reactor.finish()
        self.run()

    def close(self) -> None:
        for sibling in self.siblings:
            sibling.links.close()
            sibling.reactor.close()


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path)
    yield swarm
    swarm.close()


def is_over(sock: socket.socket) -> bool:
    """Whether the other end has closed it."""
    with contextlib.suppress(BlockingIOError):
        while sock.recv(65536):
            pass
        return True
    return False


class Stranger:
    """Somebody who connects to a link socket."""

    def __init__(self, swarm: Swarm, to: Sibling, *, is_noticed: bool = True, **words: Any) -> None:
        self.swarm = swarm
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(to.linked_shard.path)
        self.sock.setblocking(False)
        if words:
            text = json.dumps({"server_id": "N", "shard": 1, "boot_id": "b1", "link_version": LINK_VERSION} | words)
            self.sock.send(f"INFO {text} \r\nCONNECT {text}\r\n".encode())
        if is_noticed:
            swarm.run()

    @property
    def is_turned_away(self) -> bool:
        return is_over(self.sock)

    def close(self) -> None:
        self.sock.close()
        self.swarm.run()


def test_the_higher_number_dials_and_both_are_ready_once(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    assert (low.linked, high.linked) == ([1], [0])
    assert [session.dialled is not None for one in (low, high) for session in one.links.sessions] == [False, True]
    swarm.tell(low, high)
    assert low.said == high.said == ["ready"]


def test_who_is_alone_is_ready_when_the_router_says_that_it_is_linked(swarm: Swarm) -> None:
    one = swarm.start(0)
    assert one.said == []
    swarm.tell(one)
    assert one.said == ["ready"]


def test_three_shards_are_linked_each_with_each(swarm: Swarm) -> None:
    all_of_them = [swarm.start(number) for number in range(3)]
    swarm.tell(*all_of_them)
    assert [one.linked for one in all_of_them] == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize(
    "words",
    [
        {"server_id": "M"},
        {"link_version": LINK_VERSION + 1},
        {"shard": 0},
        {"shard": 64},
        {"shard": -1},
        {"shard": "1"},
    ],
    ids=str,
)
def test_who_is_no_sibling_is_turned_away(swarm: Swarm, words: dict[str, Any]) -> None:
    one = swarm.start(0)
    swarm.tell(one)
    stranger = Stranger(swarm, one, **words)
    assert stranger.is_turned_away
    stranger.close()


def test_a_process_of_another_user_is_turned_away(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    one = swarm.start(0)
    swarm.tell(one)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    stranger = Stranger(swarm, one)
    assert stranger.is_turned_away
    stranger.close()


def test_a_process_of_another_user_is_told_nothing_where_a_sibling_should_listen(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns a directory above ours can put another one in its place."""
    low, high = swarm.start(0), swarm.start(1)
    os.unlink(low.linked_shard.path)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(low.linked_shard.path)
        theirs.listen()
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
        high.links.on_linked_shards([low.linked_shard, high.linked_shard])
        swarm.run()
        connection, _ = theirs.accept()
        with connection:
            assert connection.recv(1) == b""
        assert high.linked == high.said == []
        monkeypatch.undo()
        swarm.pass_s(1.0)
        connection, _ = theirs.accept()
        with connection:
            assert connection.recv(5) == b"INFO "


def test_who_has_not_heard_a_siblings_whole_interest_is_not_ready(swarm: Swarm) -> None:
    """A handshake alone is not enough: clients' messages would miss subscribers of that sibling."""
    low, high = swarm.start(0), swarm.start(1)
    low.links.on_linked_shards([low.linked_shard, high.linked_shard])
    stranger = Stranger(swarm, low, shard=1, boot_id=high.linked_shard.boot_id)  # answers no PING
    assert [session.link.is_joined for session in low.links.sessions] == [True]
    low.links.on_linked_shards([low.linked_shard, high.linked_shard])
    assert low.said == []
    stranger.close()


def test_who_is_ours_to_dial_is_turned_away(swarm: Swarm) -> None:
    one = swarm.start(2)
    stranger = Stranger(swarm, one, shard=1)
    assert stranger.is_turned_away
    stranger.close()


def test_who_says_nothing_is_turned_away_after_a_while(swarm: Swarm) -> None:
    one = swarm.start(0)
    stranger = Stranger(swarm, one)
    swarm.pass_s(HANDSHAKE_S - 0.01)
    assert not stranger.is_turned_away
    swarm.pass_s(0.02)
    assert stranger.is_turned_away
    stranger.close()


def test_who_did_not_run_while_a_sibling_answered_is_linked_to_it(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the connection, whose other end had joined: at the start of many shards a broken link for each."""
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low)
    high.links.on_linked_shards([low.linked_shard, high.linked_shard])
    high.sockets.finish()
    low.links.on_linked_shards([low.linked_shard, high.linked_shard])
    for _ in range(TURNS):
        low.reactor.turn()
    assert [session.link.is_joined for session in low.links.sessions] == [True]
    swarm.pass_s(HANDSHAKE_S)
    assert (low.linked, high.linked) == ([1], [0])
    assert "hole" not in low.said + high.said
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


def test_a_sibling_that_does_not_run_for_a_while_is_dialled_once(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    low, high = swarm.start(0), swarm.start(1)
    high.links.on_linked_shards([low.linked_shard, high.linked_shard])
    for _ in range(4):
        swarm.clock.pass_s(HANDSHAKE_S)
        high.reactor.turn()
    assert len(high.links._greeting) == 1
    swarm.tell(low, high)
    assert (low.linked, high.linked) == ([1], [0])
    assert "hole" not in low.said + high.said
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
    swarm.pass_s(HANDSHAKE_S)
    assert (low.linked, high.linked) == ([1], [0])


def test_a_dialled_process_that_the_router_names_no_more_is_not_waited_for(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    high.links.on_linked_shards([low.linked_shard, high.linked_shard])
    high.links.on_linked_shards([high.linked_shard])
    swarm.clock.pass_s(HANDSHAKE_S)
    assert high.links._greeting == {}


def test_a_sibling_that_is_faster_than_the_routers_word_of_it_waits_for_that(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low)
    high.links.on_linked_shards([low.linked_shard, high.linked_shard])
    swarm.run()
    assert low.linked == []
    swarm.tell(low, high)
    assert (low.linked, high.linked) == ([1], [0])


def test_a_boot_id_that_the_router_never_names_is_turned_away(swarm: Swarm) -> None:
    one = swarm.start(0)
    swarm.tell(one)
    stranger = Stranger(swarm, one, boot_id="other")
    assert not stranger.is_turned_away
    swarm.pass_s(HANDSHAKE_S)
    assert stranger.is_turned_away
    stranger.close()


def test_who_hangs_up_while_it_waits_for_the_routers_word_is_no_error(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    one = swarm.start(0)
    swarm.tell(one)
    stranger = Stranger(swarm, one, boot_id="other")
    stranger.close()
    swarm.pass_s(HANDSHAKE_S)
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
    swarm.pass_s(HANDSHAKE_S)
    assert one.links._greeting == {}


def test_who_ends_does_not_dial_those_that_have_let_go_of_it(swarm: Swarm, caplog: pytest.LogCaptureFixture) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    high.links.close()
    low.links.on_linked_shards([low.linked_shard])
    swarm.run()
    swarm.pass_s(HANDSHAKE_S)
    assert low.links._greeting == {}
    assert high.linked == []
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


def test_a_link_that_breaks_leaves_a_hole_and_is_made_again(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    swarm.cut(high)
    swarm.pass_s(LOOK_S)
    assert (low.linked, high.linked) == ([1], [0])
    assert low.said == high.said == ["ready", "hole", "whole"]
    assert low.dead == high.dead == []


def test_shards_that_a_test_parts_are_linked_again_when_that_is_over(swarm: Swarm) -> None:
    low, high, other = (swarm.start(number) for number in range(3))
    swarm.tell(low, high, other)
    high.links.part(0, 1.0)
    low.links.part(1, 1.0)
    swarm.run()
    assert (low.linked, high.linked, other.linked) == ([2], [2], [0, 1])
    assert low.said == high.said == ["ready", "hole"]
    swarm.tell(low, high, other)  # the router's word does not end it
    swarm.pass_s(0.9)
    assert (low.linked, high.linked) == ([2], [2])
    swarm.pass_s(0.3)
    assert (low.linked, high.linked) == ([1, 2], [0, 2])
    high.links.part(0, 60.0)
    high.links.part(0, 0.0)
    swarm.run()
    swarm.pass_s(0.3)
    assert (low.linked, high.linked) == ([1, 2], [0, 2])
    assert low.said == high.said == ["ready", "hole", "whole", "hole", "whole"]
    high.links.part(7, 1.0)  # no such shard


def test_a_parted_shards_successor_is_dialled_at_once(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    high.links.part(0, 60.0)
    swarm.run()
    successor = Sibling(0, swarm.clock, swarm.directory, "c")
    swarm.siblings.append(successor)
    swarm.tell(successor, high)
    assert (successor.linked, high.linked) == ([1], [0])


def test_who_is_dialled_gives_up_when_nobody_dials_again(swarm: Swarm) -> None:
    one = swarm.start(0)
    other = LinkedShard(1, "b1", str(swarm.directory / "nowhere"))
    one.links.on_linked_shards([one.linked_shard, other])
    stranger = Stranger(swarm, one, shard=1, boot_id="b1")
    assert [session.link.shard for session in one.links.sessions] == [1]
    stranger.close()
    assert one.said == ["hole"]
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED)
    assert one.said[1:] == [
        f"the link to shard 1 broke and could not be made again for {LOOKS_OF_THE_DIALLED * LOOK_S:g} s"
    ]


@pytest.mark.parametrize("ends", [0, 1], ids=["is dialled", "dials"])
@pytest.mark.parametrize("is_reaped", [True, False])
def test_nobody_waits_for_a_process_that_has_ended(swarm: Swarm, ends: int, is_reaped: bool) -> None:
    """Whatever the router says, or does not."""
    siblings = [swarm.start(0), swarm.start(1)]
    swarm.tell(*siblings)
    other = siblings[1 - ends]
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        process.wait()
    for session in other.links.sessions:
        session.process = process.pid
    other.links.part(ends, 60.0)
    siblings[ends].links.part(1 - ends, 60.0)
    swarm.run()
    assert other.said == ["ready", "hole"]
    swarm.pass_s(LOOK_S)
    process.wait()
    assert other.said == ["ready", "hole", "whole"]
    assert other.dead == [ends]
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLER)
    assert other.said == ["ready", "hole", "whole"]
    assert "could not be made again" in str(siblings[ends].said[-1])


@pytest.mark.parametrize("leaves", [0, 1], ids=["is dialled", "dials"])
def test_nobody_waits_for_a_shard_that_has_said_goodbye(swarm: Swarm, leaves: int) -> None:
    """Its process lives, and the router does not tell: a relay, while the router is stopped."""
    siblings = [swarm.start(0), swarm.start(1)]
    swarm.tell(*siblings)
    leaving, other = siblings[leaves], siblings[1 - leaves]
    leaving.links.close()
    swarm.run()
    assert other.linked == [leaves]  # it hears what comes behind that
    leaving.links.on_linked_shards([])
    swarm.run()
    assert other.linked == [] and other.dead == [leaves]
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLER)
    assert other.said == ["ready"]


def test_who_ends_gives_no_link_up(swarm: Swarm) -> None:
    """Its clients are being closed, which may take long."""
    siblings = [swarm.start(0), swarm.start(1)]
    swarm.tell(*siblings)
    siblings[1].links.part(0, 60.0)
    swarm.run()
    ending = siblings[0]
    assert ending.said == ["ready", "hole"]
    ending.links.close()
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED)
    assert ending.said == ["ready", "hole"]


def test_what_a_shard_said_before_it_ended_is_read_by_who_writes_to_it_first(swarm: Swarm) -> None:
    siblings = [swarm.start(0), swarm.start(1)]
    swarm.tell(*siblings)
    leaving, other = siblings
    (there,), (here,) = leaving.links.sessions, other.links.sessions
    there.link.send(b"RMSG $G a 1\r\nx\r\n" * 3)
    leaving.links.close()
    leaving.reactor.finish()
    leaving.reactor.close()
    here.link.send(b"RS+ $G a\r\n")
    other.reactor.finish()
    swarm.siblings.remove(leaving)
    swarm.run()
    assert here.link.in_msgs == 3
    assert other.said == ["ready"] and other.dead == [0]


def test_a_link_that_breaks_again_and_again_is_given_up_as_one_that_does_not_come_back(swarm: Swarm) -> None:
    """Its ends are joined each time, but never in step."""
    one = swarm.start(0)
    other = LinkedShard(1, "b1", str(swarm.directory / "nowhere"))
    one.links.on_linked_shards([one.linked_shard, other])
    for _ in range(LOOKS_OF_THE_DIALLED):
        Stranger(swarm, one, shard=1, boot_id="b1").close()
        assert one.said == ["hole"]
        swarm.pass_s(LOOK_S)
    assert one.said[1:] == [
        f"the link to shard 1 broke and could not be made again for {LOOKS_OF_THE_DIALLED * LOOK_S:g} s"
    ]


def whose_link_broke(swarm: Swarm) -> Sibling:
    """Shard 0, to which shard 1 has been linked, which lives."""
    one = swarm.start(0)
    other = LinkedShard(1, "b1", str(swarm.directory / "nowhere"))
    one.links.on_linked_shards([one.linked_shard, other])
    Stranger(swarm, one, shard=1, boot_id="b1").close()
    return one


def test_a_link_is_not_given_up_while_interest_passes_over_it(swarm: Swarm) -> None:
    """A million subjects take seconds."""
    one = whose_link_broke(swarm)
    stranger = Stranger(swarm, one, shard=1, boot_id="b1")
    for number in range(3 * LOOKS_OF_THE_DIALLED):
        stranger.sock.send(b"RS+ $G told.%d\r\n" % number)
        swarm.run()
        swarm.pass_s(LOOK_S)
    assert one.said == ["hole"]
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED / LOOK_AT_LINK)
    assert [word for word in one.said if "could not be made again" in str(word)] == one.said[1:]
    assert len(one.said) == 2


def test_a_link_that_has_just_been_made_again_is_not_given_up_while_its_other_end_does_not_run(swarm: Swarm) -> None:
    """Many shards on few processors: it was made late, and its other end does not go on for two seconds more."""
    one = whose_link_broke(swarm)
    swarm.pass_s(LOOK_S * (LOOKS_OF_THE_DIALLED - 0.5))
    stranger = Stranger(swarm, one, shard=1, boot_id="b1")
    stranger.sock.send(b"PING\r\n")
    swarm.run()
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED)
    assert one.said == ["hole"]
    stranger.sock.send(b"PONG\r\n")
    swarm.run()
    assert one.said == ["hole", "whole", "ready"]


def test_a_link_is_not_given_up_while_its_other_end_has_dialled_and_says_nothing_yet(swarm: Swarm) -> None:
    one = whose_link_broke(swarm)
    swarm.pass_s(LOOK_S * (LOOKS_OF_THE_DIALLED - 0.5))
    stranger = Stranger(swarm, one)
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED)
    assert one.said == ["hole"]
    stranger.close()
    swarm.pass_s(LOOK_S * LOOKS_OF_THE_DIALLED)
    assert [word for word in one.said if "could not be made again" in str(word)] == one.said[1:]
    assert len(one.said) == 2


def test_a_link_that_flaps_is_given_up_though_each_look_sees_one(swarm: Swarm) -> None:
    one = whose_link_broke(swarm)
    for _ in range(2 * LOOKS_OF_THE_DIALLED):
        stranger = Stranger(swarm, one, shard=1, boot_id="b1")
        swarm.pass_s(LOOK_S)
        stranger.close()
    assert len(one.said) == 2 and "could not be made again" in str(one.said[1])


def test_a_link_is_not_given_up_while_its_other_end_drops_what_the_last_one_told(swarm: Swarm) -> None:
    """It says nothing then, and reads nothing."""
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    go_on_soon = high.mesh.soon
    high.mesh.soon = lambda: None  # (nothing is dropped yet)
    assert go_on_soon is not None
    swarm.cut(high)
    for _ in range(2 * LOOKS_OF_THE_DIALLED):
        swarm.pass_s(LOOK_S)
    assert [session.link.is_joined for session in low.links.sessions] == [True]
    assert [session.link.is_joined for session in high.links.sessions] == [False]
    high.mesh.soon = go_on_soon
    go_on_soon()
    swarm.run()
    assert low.said == ["ready", "hole", "whole"]


def test_a_link_that_is_replaced_while_it_waits_to_join_joins_no_more(swarm: Swarm) -> None:
    one = swarm.start(0)
    other = LinkedShard(1, "b1", str(swarm.directory / "nowhere"))
    one.links.on_linked_shards([one.linked_shard, other])
    first = Stranger(swarm, one, shard=1, boot_id="b1")
    first.sock.send(b"RS+ $G told\r\n")
    swarm.run()
    one.mesh.soon = lambda: None
    first.close()
    second, third = (Stranger(swarm, one, shard=1, boot_id="b1") for _ in range(2))
    assert second.is_turned_away
    assert [session.link.is_joined for session in one.links.sessions] == [False]
    while one.mesh.go_on() is not None:
        pass
    one.reactor.finish()
    swarm.run()
    assert [session.link.is_joined for session in one.links.sessions] == [True]
    assert one.mesh.up == 1 << 1
    third.close()
    assert one.mesh.up == 0


def test_a_successor_s_hole_is_a_new_one(swarm: Swarm) -> None:
    one = swarm.start(0)
    for boot_id in ("b1", "c1"):
        successor = LinkedShard(1, boot_id, str(swarm.directory / "nowhere"))
        one.links.on_linked_shards([one.linked_shard, successor])
        Stranger(swarm, one, shard=1, boot_id=boot_id).close()
        swarm.pass_s(LOOK_S * (LOOKS_OF_THE_DIALLED - 1))
    assert one.said == ["hole", "whole", "hole"]
    assert one.dead == [1]
    swarm.pass_s(LOOK_S)
    assert len(one.said) == 4


def test_a_shard_that_the_router_calls_gone_leaves_no_hole(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    swarm.tell(low)
    assert low.links.sessions == []
    assert low.said == ["ready"]
    assert low.dead == [1]


def test_what_a_shard_sent_before_the_router_called_it_gone_is_read(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    (there,), (here,) = low.links.sessions, high.links.sessions
    here.link.send(b"RMSG $G a 1\r\nx\r\n" * 3)
    high.reactor.finish()
    low.links.on_linked_shards([low.linked_shard])
    assert there.link.in_msgs == 3
    swarm.run()
    assert low.links.sessions == [] and low.said == ["ready"]


def test_a_hole_is_closed_by_the_word_that_the_shard_is_gone(swarm: Swarm) -> None:
    low, high = swarm.start(0), swarm.start(1)
    swarm.tell(low, high)
    high.links.part(0, 60.0)
    swarm.run()
    assert low.said == ["ready", "hole"]
    assert low.dead == [], "it may live"
    low.links.on_linked_shards([low.linked_shard])
    assert low.said == ["ready", "hole", "whole"]
    assert low.dead == [1]


def test_what_waits_for_a_link_goes_on_when_the_router_calls_its_shard_gone(swarm: Swarm) -> None:
    """A queue message without a member here, from shard 2; those of shard 1 are not known."""
    one = swarm.start(0)
    lost, other = [LinkedShard(n, f"b{n}", str(swarm.directory / "nowhere")) for n in (1, 2)]
    one.links.on_linked_shards([one.linked_shard, lost, other])
    Stranger(swarm, one, shard=1, boot_id="b1").close()
    publisher = Stranger(swarm, one, shard=2, boot_id="b2")
    publisher.sock.send(b"PING\r\nPONG\r\nRMSG $G a | q 1\r\n1\r\n")
    swarm.run()
    assert b"QMSG" not in publisher.sock.recv(65536)
    assert one.links.reroutes.n_pending == 1
    one.links.on_linked_shards([one.linked_shard, other])
    swarm.run()
    assert b"QMSG" in publisher.sock.recv(65536), "it goes back to who may have members that linger"


def test_a_link_socket_that_somebody_removed_is_made_again(swarm: Swarm) -> None:
    one = swarm.start(0)
    Path(one.linked_shard.path).unlink()
    one.links.listen_anew()
    stranger = Stranger(swarm, one, server_id="M")
    assert stranger.is_turned_away
    stranger.close()
    assert Path(one.linked_shard.path).stat().st_mode & 0o777 == 0o600
    one.links.close()
    assert not Path(one.linked_shard.path).exists()
    one.links.listen_anew()
    assert not Path(one.linked_shard.path).exists(), "it has been closed"


def test_whoever_is_not_there_yet_is_dialled_again(swarm: Swarm) -> None:
    high = swarm.start(1)
    nobody = LinkedShard(0, "b0", str(swarm.directory / "0.b"))
    high.links.on_linked_shards([nobody, high.linked_shard])
    low = swarm.start(0)
    low.links.on_linked_shards([nobody, high.linked_shard])
    swarm.pass_s(module.DIAL_AGAIN_S)
    assert (low.linked, high.linked) == ([1], [0])


def test_a_shard_that_a_list_lacked_for_a_moment_is_not_dialled_twice(swarm: Swarm) -> None:
    """As where a router takes over: a second link would end the first one, and close clients in doubt."""
    low, high = swarm.start(0), swarm.start(1)
    both = [low.linked_shard, high.linked_shard]
    for shards in (both, [high.linked_shard], [LinkedShard(0, "b0", low.linked_shard.path), high.linked_shard]):
        high.links.on_linked_shards(shards)
    low.links.on_linked_shards(both)
    swarm.run()
    assert (low.linked, high.linked) == ([1], [0])
    assert low.said == ["ready"], "no link broke"


def test_a_shard_that_a_list_lacked_for_a_moment_is_dialled_again_when_the_first_try_ends(swarm: Swarm) -> None:
    high = swarm.start(1)
    path = swarm.directory / "0.b"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        for shards in ([0, 1], [1], [0, 1]):
            high.links.on_linked_shards(
                [LinkedShard(0, "b0", str(path)) if number == 0 else high.linked_shard for number in shards]
            )
        swarm.run()
        listening.accept()[0].close()
    swarm.run()
    path.unlink()
    low = swarm.start(0)
    low.links.on_linked_shards([low.linked_shard, high.linked_shard])
    swarm.pass_s(module.DIAL_AGAIN_S)
    assert (low.linked, high.linked) == ([1], [0])


def words_of(**changed: object) -> bytes:
    return json.dumps({"server_id": "N", "shard": 1, "boot_id": "b1", "link_version": LINK_VERSION} | changed).encode()


@pytest.mark.parametrize(
    "said",
    [
        b"INFO hello \r\n",
        b"INFO " + words_of() + b" \r\n" + b"INFO " + words_of() + b" \r\n",
        b"CONNECT " + words_of() + b"\r\n",
        b"INFO " + words_of() + b" \r\n" + (b"CONNECT " + words_of() + b"\r\n") * 2,
    ],
    ids=["no json", "INFO twice", "CONNECT before INFO", "CONNECT twice"],
)
def test_who_does_not_keep_to_the_order_of_a_greeting_is_turned_away(swarm: Swarm, said: bytes) -> None:
    one = swarm.start(0)
    one.links.on_linked_shards([one.linked_shard, LinkedShard(1, "b1", str(swarm.directory / "nowhere"))])
    stranger = Stranger(swarm, one)
    stranger.sock.send(said)
    swarm.run()
    assert stranger.is_turned_away
    stranger.close()


def test_somebody_else_where_a_sibling_was_to_listen_is_not_linked(swarm: Swarm) -> None:
    one = swarm.start(1)
    path = swarm.directory / "0.b"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        one.links.on_linked_shards([one.linked_shard, LinkedShard(0, "b0", str(path))])
        swarm.run()
        met, _ = listening.accept()
        with met:
            met.setblocking(False)
            met.send(b"INFO " + words_of(shard=0, boot_id="other") + b" \r\n")
            swarm.run()
            assert is_over(met)
    assert one.linked == [] and one.said == []


def test_a_link_is_accepted_from_the_reserve_when_descriptors_run_out(swarm: Swarm) -> None:
    one = swarm.start(0)
    swarm.tell(one)
    stranger = Stranger(swarm, one, is_noticed=False)
    one.sockets._on_accept_error(errno.EMFILE)  # as the listener says it, with that one waiting
    assert len(one.links._greeting) == 1
    one.sockets._on_accept_error(errno.EMFILE)  # with nobody waiting
    assert len(one.links._greeting) == 1
    other = Stranger(swarm, one, server_id="M")
    assert other.is_turned_away, "the listener goes on"
    for one_of_them in (stranger, other):
        one_of_them.close()
