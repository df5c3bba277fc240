"""The hot subjects of this shard: sums per subject over the recorder's last windows and the open one, in slices.

The open window is read from the live tally, so the latest messages are included. A window that ends meanwhile would be
missed or counted twice: then everything is read again. Called for /subjectz; costs the hot path nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gnatswarm.broker import census
from gnatswarm.shards.boundary import rows
from gnatswarm.shards.boundary.utf8_text import utf8_replaced
from gnatswarm.shards.statistics.subject_history import Heaviest, SubjectCounts

if TYPE_CHECKING:
    from gnatswarm.broker.mesh import Mesh
    from gnatswarm.broker.sublist import Sublist
    from gnatswarm.shards.boundary.pace import Pace
    from gnatswarm.shards.clients.clients import Clients
    from gnatswarm.shards.statistics.recorder import Recorder

STEP_CACHE_SLOTS = 1024
STEP_ROWS = 64
STEP_SUBJECTS = 16
STEP_SESSIONS = 256
PART_ROWS = 64
# A window lasts a tenth of a second at least, reading takes some milliseconds.
MOST_LOOKS = 3

_Key = tuple[str, str]  # account, subject


async def hot_subjects(
    query: rows.HotSubjectsQuery, mesh: Mesh, recorder: Recorder, pace: Pace
) -> AsyncIterator[rows.HotSubjectsPart]:
    """The heaviest subjects of the last `query.windows` windows."""
    for look in range(1, MOST_LOOKS + 1):
        await recorder.wait_window()
        ended = recorder.history.ended
        found, other_msgs = await _open_window(query.account, mesh, pace)
        now_us = time.time_ns() // 1000
        since_us = now_us - recorder.open_us  # as the clock stands now, wherever it stood when windows ended
        windows = list(recorder.history.windows)[-(query.windows - 1) :] if query.windows > 1 else []
        for window in windows:
            since_us -= window.length_us
            other_msgs += window.other_msgs
            for at in range(0, len(window.rows), STEP_ROWS):
                for account, row in window.rows[at : at + STEP_ROWS]:
                    if not query.account or account == query.account:
                        _add(found, account, row)
                await pace()
        if recorder.history.ended == ended or look == MOST_LOOKS:
            break
    heaviest = Heaviest(query.most)
    entries = list(found.items())
    for at in range(0, len(entries), STEP_ROWS):
        for (account, _subject), row in entries[at : at + STEP_ROWS]:
            heaviest.add(account, [row])
        await pace()
    answer = heaviest.rows
    other_msgs += heaviest.left_out_msgs
    for at in range(0, max(1, len(answer)), PART_ROWS):
        listed = [
            rows.HotSubjectRow(
                *(account, row.subject, row.msgs, row.payload_bytes),
                *(row.deliveries, row.out_bytes, row.unwanted, row.widest),
            )
            for account, row in answer[at : at + PART_ROWS]
        ]
        yield rows.HotSubjectsPart(since_us, now_us, len(found), other_msgs, listed)
        await pace()


async def _open_window(wanted: str, mesh: Mesh, pace: Pace) -> tuple[dict[_Key, SubjectCounts], int]:
    """Counts by subject since the last window ended, and the number of messages without a row."""
    found: dict[_Key, SubjectCounts] = {}
    other_msgs = 0
    for sublist in _sublists(mesh, wanted):
        account = sublist.account.decode()
        at = 0
        while at := sublist.harvest(at, STEP_CACHE_SLOTS):
            await pace()
        tally = sublist.tally
        if tally is None:
            continue
        seen: set[str] = set()  # a table that grows between two steps may show a row twice
        while True:
            step, at = tally.read(at, STEP_ROWS, True)
            for subject, *counts in step:
                if subject not in seen:
                    seen.add(subject)
                    _add(found, account, SubjectCounts(utf8_replaced(subject), *counts))
            await pace()
            if not at:
                break
        other_msgs += tally.other_msgs
    return found, other_msgs


def _add(found: dict[_Key, SubjectCounts], account: str, row: SubjectCounts) -> None:
    key = account, row.subject
    before = found.get(key)
    if before is None:
        found[key] = row
        return
    found[key] = SubjectCounts(
        row.subject,
        before.error + row.error,
        before.msgs + row.msgs,
        before.payload_bytes + row.payload_bytes,
        before.deliveries + row.deliveries,
        before.out_bytes + row.out_bytes,
        before.unwanted + row.unwanted,
        before.link_out_msgs + row.link_out_msgs,
        before.link_in_msgs + row.link_in_msgs,
        max(before.widest, row.widest),
        before.misses + row.misses,
    )


def _sublists(mesh: Mesh, account: str = "") -> list[Sublist]:
    return [mesh.account(name) for name in mesh.account_names() if not account or name == account.encode()]


async def subject_interest(
    query: rows.SubjectInterestQuery, mesh: Mesh, clients: Clients, pace: Pace
) -> AsyncIterator[rows.SubjectInterestPart]:
    """The present publishers and subscribers of these subjects on this shard."""
    known = set(mesh.account_names())
    found: list[tuple[Sublist, bytes, int] | None] = []
    for account, subject in query.subjects:
        # A row that stands for many subjects has no subscribers of its own.
        if account.encode() not in known or subject.endswith(".>"):
            found.append(None)
            continue
        sublist, name = mesh.account(account.encode()), subject.encode()
        found.append((sublist, name, census.subject_hash(sublist, name)))
    # Hash seeds differ between sublists, so a hash also identifies the account.
    publishers = dict.fromkeys((one[2] for one in found if one is not None), 0)
    sessions = list(clients.open.values())
    for at in range(0, len(sessions), STEP_SESSIONS):
        await pace()
        for session in sessions[at : at + STEP_SESSIONS]:
            to = census.published_to(session.connection)
            if to in publishers:
                publishers[to] += 1
    answer: list[rows.SubjectInterestRow] = []
    for at, one in enumerate(found):
        if one is None:
            answer.append(rows.SubjectInterestRow(0, 0, 0, False, 0))
        else:
            sublist, name, to = one
            answer.append(rows.SubjectInterestRow(*census.interest(sublist, name), publishers[to]))
        if at % STEP_SUBJECTS == 0:
            await pace()
        if len(answer) == PART_ROWS:
            yield rows.SubjectInterestPart(answer)
            answer = []
    yield rows.SubjectInterestPart(answer)
