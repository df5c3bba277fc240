"""Which subjects are hot on this shard: the recorder's last windows and the open one, added up per subject, in slices.

The open window is read where it is counted, so what was published a moment ago is there. A window that ends meanwhile
would be missed or be there twice: then all is looked at again. Called for /subjectz; costs the hot path nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from broker import census
from shards import rows
from shards.subject_history import Counted, Heaviest

if TYPE_CHECKING:
    from broker.mesh import Mesh
    from broker.sublist import Sublist
    from shards.clients import Clients
    from shards.pace import Pace
    from shards.recorder import Recorder

STEP_CACHE_SLOTS = 1024
STEP_ROWS = 64
STEP_SUBJECTS = 16
STEP_SESSIONS = 256
PART_ROWS = 64
# Windows are a tenth of a second at least, a look takes some milliseconds.
MOST_LOOKS = 3

_Key = tuple[str, str]  # account, subject


async def hot_subjects(
    query: rows.HotSubjectsQuery, mesh: Mesh, recorder: Recorder, pace: Pace
) -> AsyncIterator[rows.HotSubjectsPart]:
    """The heaviest subjects of so many windows."""
    for look in range(1, MOST_LOOKS + 1):
        await recorder.wait_window()
        ended = recorder.history.ended
        found, other_msgs = await _open_window(query.account, mesh, pace)
        now_us = time.time_ns() // 1000
        since_us = now_us - recorder.open_us
        windows = list(recorder.history.windows)[-(query.windows - 1) :] if query.windows > 1 else []
        for window in windows:
            since_us = min(since_us, window.start_us)
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
        for (account, subject), (error, *counts) in entries[at : at + STEP_ROWS]:
            heaviest.add(account, [(subject, error, *counts)])  # type: ignore[list-item]
        await pace()
    answer = heaviest.rows
    other_msgs += heaviest.left_out_msgs
    for at in range(0, max(1, len(answer)), PART_ROWS):
        listed = [
            rows.HotSubjectRow(account, row[0], row[2], row[3], row[4], row[5], row[6], row[9])
            for account, row in answer[at : at + PART_ROWS]
        ]
        yield rows.HotSubjectsPart(since_us, now_us, len(found), other_msgs, listed)
        await pace()


async def _open_window(wanted: str, mesh: Mesh, pace: Pace) -> tuple[dict[_Key, list[int]], int]:
    """What was counted since the last window ended, and how many messages of it have no row."""
    found: dict[_Key, list[int]] = {}
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
            step, at = tally.read(at, STEP_ROWS)
            for row in step:
                if row[0] not in seen:
                    seen.add(row[0])
                    _add(found, account, row)
            await pace()
            if not at:
                break
        other_msgs += tally.other_msgs
    return found, other_msgs


def _add(found: dict[_Key, list[int]], account: str, row: Counted) -> None:
    subject, *counts = row
    entry = found.get((account, subject))
    if entry is None:
        found[account, subject] = counts
        return
    widest = max(entry[8], counts[8])
    found[account, subject] = [a + b for a, b in zip(entry, counts, strict=True)]
    found[account, subject][8] = widest


def _sublists(mesh: Mesh, account: str = "") -> list[Sublist]:
    return [mesh.account(name) for name in mesh.account_names() if not account or name == account.encode()]


async def subject_interest(
    query: rows.SubjectInterestQuery, mesh: Mesh, clients: Clients, pace: Pace
) -> AsyncIterator[rows.SubjectInterestPart]:
    """Who publishes to these subjects here and who subscribes to them, as it is now."""
    known = set(mesh.account_names())
    found: list[tuple[Sublist, bytes, int] | None] = []
    for account, subject in query.subjects:
        # One that stands for many has nobody of its own.
        if account.encode() not in known or subject.endswith(".>"):
            found.append(None)
            continue
        sublist, name = mesh.account(account.encode()), subject.encode()
        found.append((sublist, name, census.subject_hash(sublist, name)))
    # Seeds differ between sublists, so that a hash says which account's subject it is.
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
