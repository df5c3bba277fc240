"""What a reload does where passwords cannot be compared with its hashes."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gnatswarm.broker.access.auth import NOBODY, Admission, HashedPassword
from gnatswarm.shards.clients import comparisons
from gnatswarm.shards.clients.comparisons import COMPARE_ATTEMPTS, Comparisons
from tests.support.turns import until

ADMISSION = Admission(NOBODY)


class FullPasswords:
    """Too many wait to be compared."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, question: HashedPassword, waiter: object) -> bool:
        self.asked.append(question.password)
        return False


async def test_behind_one_that_cannot_be_made_each_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload would wait for 5 s for each of 40."""
    monkeypatch.setattr(comparisons, "COMPARE_AGAIN_S", 0.0)
    passwords = FullPasswords()
    told: list[str] = []

    def look_again(sessions: Collection[str]) -> None:
        told.extend(sessions)

    waiting = Comparisons[str](passwords, look_again)  # type: ignore[arg-type]
    questions = [HashedPassword(ADMISSION, f"password{n}", "", b"%d" % n) for n in range(3)]
    for n, question in enumerate(questions):
        assert waiting.wait_for(question, f"session{n}")
    await until(lambda: waiting.are_over)
    assert told == ["session0", "session1", "session2"]
    assert [passwords.asked.count(one.password) for one in questions] == [COMPARE_ATTEMPTS, 1, 1]
    assert not waiting.wait_for(questions[0], "session0")
    waiting.end()
    assert waiting.wait_for(questions[0], "session0"), "the next reload tries it again"
