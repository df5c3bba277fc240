"""Every transcript in tests/transcripts/, a folder per topic, on every broker kind, in whole segments and byte by byte.

The oracle is one of the kinds: a transcript that the real server does not play is a wrong transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import NEW, Broker, Kind, Pool, selected_kinds
from tests.support.transcripts import Transcript, load, load_all, run
from tests.support.wire import Cluster

DIRECTORY = Path(__file__).resolve().parent.parent / "transcripts"
TRANSCRIPTS = load_all(DIRECTORY)

EVERY_KIND = ("gnatswarm-1", "nats-server", "gnatswarm-1-as-2.15", "nats-server-2.15")
WHOLE, BYTE_BY_BYTE = None, 1


def cases() -> list[object]:
    # Those that want the same broker follow one another.
    transcripts = sorted(TRANSCRIPTS, key=lambda one: (one.args, one.config or ""))
    return [
        pytest.param(kind, transcript, piece_bytes, id=f"{kind}-{transcript}-{how}")
        for kind in selected_kinds(EVERY_KIND)
        for transcript in transcripts
        if transcript.kinds is None or kind.name in transcript.kinds
        for how, piece_bytes in (("whole", WHOLE), ("bytes", BYTE_BY_BYTE))
        # How bytes are cut does not depend on which server we are like.
        if not (piece_bytes and (transcript.is_whole_only or kind.compatibility == NEW))
    ]


def patient(transcript: Transcript) -> str | None:
    """Its configuration, with more than 2 s to log in: who is sent byte by byte needs more on a busy machine."""
    config = transcript.config or ""
    if "timeout" in config:
        return config
    if "authorization {" in config:
        return config.replace("authorization {", "authorization {\n  timeout: 60\n", 1)
    if {"--auth", "--user"} & set(transcript.args):
        return f"authorization {{ timeout: 60 }}\n{config}"
    return transcript.config


@pytest.mark.parametrize(("kind", "transcript", "piece_bytes"), cases())
async def test_transcript(
    kind: Kind,
    transcript: Transcript,
    piece_bytes: int | None,
    request: pytest.FixtureRequest,
    cluster_of: Callable[[Broker], Cluster],
) -> None:
    if transcript.wants_own_broker:
        cluster = request.getfixturevalue("cluster_with")(patient(transcript), transcript.args)
    else:
        cluster = cluster_of(request.getfixturevalue("broker"))
    await run(transcript, cluster, piece_bytes)


def test_a_transcript_that_is_wrong_fails(tmp_path: Path, pool: Pool) -> None:
    """The runner can fail: wrong bytes, a wrong pattern, a connection that stays open, one that is not quiet."""
    import asyncio

    kind = selected_kinds()[0]
    for number, wrong in enumerate(
        (
            "C: PING\nS: PUNG",
            "C: PING\nS~: PI.*",
            "C: PING\nS: PONG\nC: XING\nS~: -ERR .*\nS: <nothing>",
            "C: SUB a.b 1\nS: <nothing>",
            "C: PINX\nS: <closed>",
        )
    ):
        path = tmp_path / f"wrong{number}.txt"
        path.write_text(f"# This is wrong.\n{wrong}\n")
        cluster = Cluster(pool.get(kind))
        with pytest.raises(AssertionError, match=path.name):
            asyncio.run(run(load(path), cluster))
        cluster.close()
