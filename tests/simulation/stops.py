"""All shards of a world stop at once, while what clients have just said is on its way between them.

The wait between shards is the real one (`shards.stopping`): nobody is closed before what everybody's clients had sent
has come to whoever is to get it. Clients say nothing more when their shard has heard of the stop; that who is limited,
or has closed, is heard out first is no part of this.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from gnatswarm.shards.boundary.page import Page
from gnatswarm.shards.stopping import LOOK_AGAIN_S, Stopping
from tests.simulation import promises
from tests.simulation.schedule import Step
from tests.simulation.swarm import ALL, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

WORDS = 6  # of clients, before each shard hears of the stop
SHARE_OF_LINKS = 0.6  # from which something is read in each turn
PIECES = (1, 60, 300, ALL)


class Stopped:
    """The part of a shard that its stop uses: nobody waits in the queues of its ports."""

    def __init__(self, process: Process) -> None:
        self.clients = self
        self.fence = process.engine.probe.fence
        self.reactor = process.engine.probe
        self._process = process

    @property
    def open(self) -> dict[int, Any]:
        """The clients' sessions."""
        return self._process.clients.open

    def hear_out(self, sessions: list[Any]) -> list[Any]:
        """All of them: what they have sent is carried out."""
        return sessions

    def end_listening(self) -> None:
        """Nobody comes any more."""


def _have_all_come() -> bool:
    """The router hands nobody over."""
    return True


class Stop:
    """One stop of a world that has come to rest."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._swarm = world.swarm
        self._rng = Random(f"stop {world.schedule.seed} {len(world.schedule.steps)}")
        self._page = Page.create()
        self._left: list[Process] = []  # that have not closed their clients

    def run(self) -> None:
        """AssertionError where a client was closed before all had come that it was to get."""
        world = self._world
        before = len(world.messages)
        self._left = self._rng.sample(self._swarm.shards, len(self._swarm.shards))
        serving = list(self._left)
        while serving:
            self._talk(serving)
            self._carry()
            process = serving.pop()
            shard: Any = Stopped(process)
            loop, links, end = process.loop, process.links, partial(self._end, process)
            Stopping(loop, process.number, shard, links, self._page, _have_all_come, end)  # type: ignore[arg-type]
        world.seen["stop"] += 1
        world.seen["stop with messages on their way"] += bool(self._swarm.busy_ends())
        while self._left:
            self._carry()
            self._swarm.pass_s(LOOK_AGAIN_S / 2)
        world.look()
        self._page.close()
        world.seen["message before a stop"] += len(world.messages) - before
        promises.check(world.history)

    def _talk(self, serving: list[Process]) -> None:
        """Some clients of these shards publish, and some members of queue groups leave."""
        world, draw = self._world, self._rng.randrange
        for _ in range(draw(WORDS)):
            people = [one for one in world.people if one.is_read and one.process in serving]
            if people:
                person, step = people[draw(len(people))], Step("pub", draw(24), draw(24), draw(24))
                world.tick()
                (world.do_unsub if draw(4) == 0 else world.do_pub)(person, step)

    def _carry(self) -> None:
        """Something arrives over some links."""
        for end in self._swarm.busy_ends():
            if end.other.is_open and self._rng.random() < SHARE_OF_LINKS:
                self._world.tick()
                self._swarm.carry(end, self._rng.choice(PIECES))
                self._world.look()

    def _end(self, process: Process) -> None:
        """The shard closes its clients. What they have not got by now they will not get."""
        world = self._world
        world.look()
        world.seen["shard that stops has heard all"] += 1
        self._left.remove(process)
        for person in world.people:
            if person.process is process and not person.is_gone:
                person.is_gone = True  # (what it wanted goes on in the history: it is to have had all)
                world.present.remove(person.sight)
                person.client.close()
