"""Random things a client may say, well-formed and broken: what the fuzzers feed.

Well-formed operations over a small vocabulary, so that they meet each other's subjects, sids and groups; then mutations
that know where the protocol is tender: line ends, blanks, numbers, sizes, ends of buffers. All of it follows
from one number, so that a failure can be played again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

SUBJECTS = [b"a", b"b", b"a.b", b"a.b.c", b"b.a", b"c.d.e.f", b"_INBOX.x.1", b"a.*", b"$SYS.x", b"x" * 200]
PATTERNS = [b"a.*", b"*", b">", b"a.>", b"*.b", b"a.*.c", b"*.*.>", b"_INBOX.x.*"]
ODD_SUBJECTS = [b"a..b", b".", b"a.", b".a", b">.a", b"a.>.b", b"\x00", b"\xff\xfe", b"a\x0bb"]
REPLIES = [b"", b"", b"r", b"_INBOX.x.1", b"a.b"]
QUEUES = [b"", b"", b"q", b"r", b"a-queue-with-a-long-name", b"q.*"]
SIDS = [b"1", b"2", b"3", b"sid", b"0", b"9" * 40]
HEADER = b"NATS/1.0\r\nKey: value\r\n\r\n"
# Around the sizes at which the engine does something else: chunks, blobs, copies of 16, 32 and 256 bytes.
SIZES = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 2000, 2040, 2048, 4096]
BIG_SIZES = [32_700, 32_750, 32_768, 40_000, 65_536, 70_000]
TENDER = [
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b"\t",
    b"\x00",
    b"\xff",
    b"-1",
    b"999999999",
    b"9999999999",
    b"PUB ",
    b"PING\r\n",
]
TENDER += [b"CONNECT {}\r\n", b"+OK\r\n", b"\r\n\r\n", b" 0\r\n", b"a" * 300, b" " * 300, b"HPUB a 5 3\r\n", b"SUB > q"]


def seeds(name: str, default_s: float = 5.0) -> Iterator[int]:
    """Case numbers for GNATSWARM_FUZZ_S seconds, or GNATSWARM_FUZZ_SEED alone.

    The number of the case going on stands in build/fuzz/<name>.seed, for a crash that takes the process with it.
    """
    only = os.environ.get("GNATSWARM_FUZZ_SEED")
    if only:
        yield int(only)
        return
    folder = Path("build/fuzz")
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + float(os.environ.get("GNATSWARM_FUZZ_S", default_s))
    first = seed = random.SystemRandom().getrandbits(48)
    with (folder / f"{name}.{os.getpid()}.seed").open("wb", buffering=0) as file:
        while seed == first or time.monotonic() < deadline:
            os.pwrite(file.fileno(), b"%-20d" % seed, 0)
            yield seed
            seed += 1
    Path(file.name).unlink()
    print(f"{name}: {seed - first} cases", end=" ")


def connect(rng: random.Random) -> bytes:
    keys = ["verbose", "pedantic", "echo", "headers", "no_responders"]
    options: dict[str, object] = {key: rng.random() < 0.6 for key in keys if rng.random() < 0.7}
    options["verbose"] = options["pedantic"] = False
    if rng.random() < 0.15:
        options[rng.choice(["verbose", "pedantic"])] = True
    if options.get("no_responders"):
        options["headers"] = True
    if rng.random() < 0.2:
        options["protocol"] = rng.choice([0, 1])
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def publish(rng: random.Random, big: float) -> bytes:
    subject = rng.choice(ODD_SUBJECTS if rng.random() < 0.05 else SUBJECTS)
    size = rng.choice(BIG_SIZES if rng.random() < big else SIZES)
    payload = (
        (b"\r\nPUB a 1\r\n" * (size // 11 + 1))[:size] if rng.random() < 0.1 else bytes([rng.randrange(256)]) * size
    )
    words = [subject, *filter(None, [rng.choice(REPLIES)])]
    blank = b" " if rng.random() < 0.9 else rng.choice([b"  ", b"\t", b" \t "])
    end = b"\r\n" if rng.random() < 0.95 else b"\n"
    if rng.random() < 0.3:
        header = HEADER if rng.random() < 0.9 else b""
        words += [b"%d" % len(header), b"%d" % (len(header) + size)]
        return b"HPUB " + blank.join(words) + end + header + payload + b"\r\n"
    words += [b"%d" % size]
    return b"PUB " + blank.join(words) + end + payload + b"\r\n"


def subscribe(rng: random.Random) -> bytes:
    among = rng.choices([SUBJECTS, PATTERNS, ODD_SUBJECTS], [5, 5, 1])[0]
    return b" ".join(filter(None, [b"SUB", rng.choice(among), rng.choice(QUEUES), rng.choice(SIDS)])) + b"\r\n"


def unsubscribe(rng: random.Random) -> bytes:
    most = rng.choice([b"", b"", b" 1", b" 2", b" 5", b" 0", b" -1", b" x"])
    return b"UNSUB " + rng.choice(SIDS) + most + b"\r\n"


def operations(rng: random.Random, count: int, big: float = 0.02) -> bytes:
    """So many operations as a client may say them, some of them repeated."""
    said = []
    for _ in range(count):
        match rng.choices(["pub", "sub", "unsub", "ping", "connect", "rare"], [10, 6, 3, 2, 1, 1])[0]:
            case "pub":
                said.append(publish(rng, big) * (rng.choice([2, 3, 20]) if rng.random() < 0.3 else 1))
            case "sub":
                said.append(subscribe(rng))
            case "unsub":
                said.append(unsubscribe(rng))
            case "ping":
                said.append(rng.choice([b"PING\r\n", b"PONG\r\n", b"ping \r\n"]))
            case "connect":
                said.append(connect(rng))
            case _:
                said.append(rng.choice([b"+OK\r\n", b"INFO {}\r\n", b"PONG\n", b"PING x\r\n"]))
    return b"".join(said)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The same bytes, possibly with an error in them."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        size = rng.choice([1, 1, 1, 2, 3, 10, 100])
        match rng.randrange(9):
            case 0:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[at + size :]
            case 2:
                data = data[:at] + rng.choice(TENDER) + data[at:]
            case 3:
                data = data[:at] + data[at : at + size] * 2 + data[at + size :]
            case 4:
                data = data[:at]
            case 5:
                data = data[:at] + data[at : at + size].swapcase() + data[at + size :]
            case 6:
                data = data.replace(b"\r\n", b"\n", rng.choice([1, 3]))
            case 7:  # another number
                digits = [i for i in range(at, min(at + 200, len(data))) if 48 <= data[i] <= 57]
                for i in digits[:1]:
                    data = data[:i] + rng.choice([b"", b"0", b"7", b"00", b"12", b"-", b"99999"]) + data[i + 1 :]
            case _:
                other = rng.randrange(len(data) + 1)
                data = data[:at] + data[other : other + size] + data[at:]
    return data


def cut(rng: random.Random, least: int = 1) -> Iterator[int]:
    """Sizes of reads without end."""
    most = max(least, rng.choice([1, 3, 20, 300, 5000, 100_000]))
    while True:
        yield rng.randint(least, most)


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The same bytes in pieces of sizes that follow from the seed."""
    sizes = cut(random.Random(seed))
    found = []
    at = 0
    while at < len(data):
        size = next(sizes)
        found.append(data[at : at + size])
        at += size
    return found
