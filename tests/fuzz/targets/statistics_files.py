"""Statistics files, as a writer that was killed leaves them: finished by a later process, then read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import zstandard

from gnatswarm.shards.boundary import records, statfile
from tests.fuzz.targets import SEPARATOR

# How much of a file is decompressed here: a few bytes can hold gigabytes of zeros.
MOST_BYTES = 1 << 22
RECORDS = msgspec.json.Decoder(
    records.SubjectRecord
    | records.QueueRecord
    | records.LinkRecord
    | records.ShardRecord
    | records.SlowRecord
    | records.ClientRecord
    | records.GapRecord
)
START_US = 1_770_000_000_000_000


def check(data: bytes) -> None:
    """Whatever bytes a dead writer left in its file, exactly the whole zstd frames at its beginning are kept.

    The same is kept wherever the reads are cut. Cut the file at any byte: what is kept are the frames that end before.
    A file without a whole frame is removed, every other one gets its final name, and all of it can be decompressed.
    Each line is a record or refused as one. First byte `z`: the rest, in parts, is appended as the scribe does, and
    then cut by as many bytes as the second byte says; any other: the rest is the file as it is.
    """
    content = appended(data[2:], data[1]) if data[:1] == b"z" and len(data) > 1 else data[1:]
    if is_bomb(content):
        return
    with tempfile.TemporaryDirectory(prefix="gnatswarm-fuzz-", dir=ramdisk()) as directory:
        folder = Path(statfile.hour_directory(directory, START_US))
        folder.mkdir(parents=True)
        hidden = folder / f".a{statfile.ENDING}"
        hidden.write_bytes(content)
        ends = frame_ends(content)
        fd = os.open(hidden, os.O_RDONLY)
        try:
            whole = statfile.whole_frames(fd)
            assert whole == (ends[-1] if ends else 0), f"{whole} bytes are kept of frames that end at {ends}"
            usual = statfile.READ_BYTES
            try:
                for read_bytes in (1, 7):
                    statfile.READ_BYTES = read_bytes
                    assert statfile.whole_frames(fd) == whole or len(content) > 2000
            finally:
                statfile.READ_BYTES = usual
        finally:
            os.close(fd)
        for cut in {len(content) // 2, len(content) - 1, *(end - 1 for end in ends[:3])} - {-1}:
            other = folder / f".b{statfile.ENDING}"
            other.write_bytes(content[:cut])
            fd = os.open(other, os.O_RDONLY)
            try:
                assert statfile.whole_frames(fd) == max((end for end in ends if end <= cut), default=0)
            finally:
                os.close(fd)
                other.unlink()
        adopted = statfile.adopt_orphans(directory)
        assert not hidden.exists()
        assert adopted == (whole > 0)
        shown = sorted(Path(directory).glob(f"*/*/[!.]*{statfile.ENDING}"))
        assert [path.read_bytes() for path in shown] == ([content[:whole]] if whole else [])
        if whole:
            with shown[0].open("rb") as file:
                text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
            for line in text.splitlines():
                try:
                    RECORDS.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
        assert statfile.adopt_orphans(directory) == 0


def appended(data: bytes, cut: int) -> bytes:
    """Frames as the scribe writes them, with this many bytes cut off the end."""
    compressor = zstandard.ZstdCompressor(level=statfile.COMPRESSION_LEVEL)
    frames = b"".join(compressor.compress(lines) for lines in data.split(SEPARATOR))
    return frames[: len(frames) - cut] if cut < len(frames) else frames


def frame_ends(content: bytes) -> list[int]:
    """Where each whole frame at the beginning ends; one attempt for each frame, by a decompressor of its own."""
    ends: list[int] = []
    at = 0
    while at < len(content):
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame.decompress(content[at:])
        except zstandard.ZstdError:
            break
        if not frame.eof:
            break
        at = len(content) - len(frame.unused_data)
        ends.append(at)
    return ends


def is_bomb(content: bytes) -> bool:
    """Whether these bytes hold more than MOST_BYTES."""
    reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True, closefd=False)
    try:
        return len(reader.read(MOST_BYTES + 1)) > MOST_BYTES
    except zstandard.ZstdError:
        return False


def ramdisk() -> str | None:
    """A directory in memory, where there is one: thousands of files a second are synced."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
