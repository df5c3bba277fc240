"""Output buffers: what is appended comes out in order, memory is given back, limits and marks are told."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnatswarm.broker.errors import CloseReason
from gnatswarm.broker.outbuf import OutBufProbe

CHUNK = 65_536
SMALL = 2_048

# Around the sizes of chunks, and ordinary.
edges = [SMALL - 1, SMALL, SMALL + 1, CHUNK - 1, CHUNK, CHUNK + 1, 100_000]
sizes = st.integers(1, 300) | st.sampled_from(edges)


def pattern(size: int, start: int) -> bytes:
    """Bytes that show their position."""
    return (
        bytes((start + i) % 251 for i in range(size))
        if size < 500
        else (bytes(range(251)) * (size // 251 + 2))[start % 251 : start % 251 + size]
    )


class OutBufAgainstBytes(RuleBasedStateMachine):
    """One buffer, against the bytes that were put into it. Its kernel takes what it is asked to, 0 by default."""

    def __init__(self):
        super().__init__()
        self.out = OutBufProbe(kernel=self.kernel)
        self.waiting = b""
        self.put = 0
        self.taking = 0  # so much
        self.sent = b""  # what the kernel took

    def kernel(self, pending):
        n = min(pending, self.taking)
        self.taking -= n
        self.sent += b"".join(self.out.gather())[:n]
        return n

    def next_bytes(self, size):
        data = pattern(size, self.put)
        self.put += size
        self.waiting += data
        return data

    @rule(size=sizes)
    def append(self, size):
        assert self.out.append(self.next_bytes(size))

    @rule(size=sizes, skipped=st.integers(0, 40))
    def append_blob(self, size, skipped):
        assert self.out.append_blob(bytes(skipped) + self.next_bytes(size), skipped)

    @rule(size=sizes, prefix=st.binary(max_size=30), line=st.none() | st.binary(max_size=30), n=st.integers(1, 80))
    def send_run(self, size, prefix, line, n):
        """`line`: what is before each tail in what was read; None: the prefix."""
        line = prefix if line is None else line
        tails = [self.next_bytes(size) for _ in range(n)]
        self.waiting = self.waiting[: len(self.waiting) - n * size]
        self.taking = self.put * 7919 % (n * (len(prefix) + size) + 1)
        self.sent = b""
        settled = self.out.send_run(prefix, b"".join(line + tail for tail in tails), len(line), n)
        self.taking = 0
        assert settled == 0 if self.waiting else 0 < settled <= n
        run = b"".join(prefix + tail for tail in tails[:settled])
        assert run.startswith(self.sent)
        self.waiting += run[len(self.sent) :]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take(self, data):
        n = data.draw(st.integers(0, len(self.waiting)))
        self.out.take(n)
        self.waiting = self.waiting[n:]

    @rule()
    def take_all(self):
        self.out.take(len(self.waiting))
        self.waiting = b""
        assert self.out.memory["in_use"] == 0

    @rule(room=st.integers(1, 64))
    def gather(self, room):
        parts = self.out.gather(room)
        assert len(parts) <= room and all(parts)
        joined = b"".join(parts)
        assert self.waiting.startswith(joined)
        assert len(parts) == room or joined == self.waiting

    @invariant()
    def pending_is_what_waits(self):
        assert self.out.pending == len(self.waiting)
        assert bool(self.waiting) <= bool(self.out.memory["in_use"])

    def teardown(self):
        self.out.release()
        assert self.out.memory["in_use"] == 0 and self.out.pending == 0


OutBufAgainstBytes.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_what_is_appended_comes_out_in_order = OutBufAgainstBytes.TestCase


def test_a_peer_that_gets_little_holds_a_small_chunk_and_an_idle_one_none():
    out = OutBufProbe()
    out.append(b"x" * 100)
    assert out.memory["in_use"] == SMALL
    out.take(100)
    assert out.memory == {"in_use": 0, "free_chunks": 0, "free_small": 1}
    out.append(b"x")
    assert out.memory == {"in_use": SMALL, "free_chunks": 0, "free_small": 0}


def test_what_no_longer_fits_into_a_small_chunk_moves_to_a_large_one_from_the_pool():
    out = OutBufProbe()
    out.append(b"x" * SMALL)
    out.append(b"y")
    assert out.memory == {"in_use": CHUNK, "free_chunks": 0, "free_small": 1}
    assert out.gather() == [b"x" * SMALL + b"y"]
    out.take(SMALL + 1)
    assert out.memory == {"in_use": 0, "free_chunks": 1, "free_small": 1}
    out.append(b"x" * CHUNK)
    assert out.memory == {"in_use": CHUNK, "free_chunks": 0, "free_small": 1}


def test_what_the_kernel_left_of_a_small_chunk_moves_alone():
    out = OutBufProbe()
    out.append(b"x" * SMALL)
    out.take(10)
    out.append(b"y" * 100)
    assert out.gather() == [b"x" * (SMALL - 10) + b"y" * 100]


@pytest.mark.parametrize("writes", [[1500, 1500], [128] * 25, [2048, 1]])
def test_output_of_a_little_more_than_a_small_chunk_goes_out_in_one_send(writes):
    asked = []

    def kernel(pending):
        asked.append(pending)
        return pending

    out = OutBufProbe(kernel=kernel)
    for size in writes:
        out.append(b"x" * size)
    assert asked == []  # the end of the round sends it
    assert [len(part) for part in out.gather()] == [sum(writes)]


def test_what_is_larger_than_a_chunk_gets_one_of_its_size_that_is_not_pooled():
    out = OutBufProbe()
    out.append(b"x" * (CHUNK + 1))
    assert out.memory["in_use"] == CHUNK + 1
    out.take(CHUNK + 1)
    assert out.memory == {"in_use": 0, "free_chunks": 0, "free_small": 0}


def test_a_blob_is_counted_once_and_freed_with_its_last_reader():
    out = OutBufProbe()
    out.append(b"head")
    out.append_blob(b"b" * 40_000)
    assert out.memory["in_use"] == SMALL + 40_000
    out.take(4 + 39_999)
    assert out.memory["in_use"] == 40_000
    out.take(1)
    assert out.memory["in_use"] == 0


def test_a_full_chunk_is_flushed_at_once_so_that_a_peer_that_reads_needs_no_second_one():
    asked = []

    def kernel(pending):
        asked.append(pending)
        return pending

    out = OutBufProbe(kernel=kernel)
    for _ in range(1000):
        out.append(b"x" * 1000)
    assert asked == [65_000] * 15  # 65 messages in each large chunk
    assert out.memory["in_use"] == CHUNK


RUN = b"".join(b"PUB a 4\r\n%04d\r\n" % number for number in range(100))
TAILS = b"".join(b"MSG a 1 4\r\n%04d\r\n" % number for number in range(100))


def run_to(taken, **settings):
    """What is settled of the RUN, where the kernel takes what `taken` has, one after the other; and the buffer."""
    out = OutBufProbe(kernel=lambda pending: min(pending, taken.pop(0)), **settings)
    return out.send_run(b"MSG a 1", RUN, 5, 100), out


def test_a_run_that_the_kernel_takes_needs_no_chunk():
    settled, out = run_to([10_000] * 4)
    assert settled == 100
    assert (out.pending, out.memory["in_use"], out.flags) == (0, 0, set())


def test_a_run_behind_another_prefix_of_the_same_size_is_no_stretch_of_what_was_read():
    sent = []

    def kernel(pending):
        sent.extend(out.gather())
        return pending

    out = OutBufProbe(kernel=kernel)
    assert out.send_run(b"MSG b", RUN, 5, 100) == 100
    assert b"".join(sent) == RUN.replace(b"PUB a", b"MSG b")
    sent.clear()
    assert out.send_run(b"PUB a", RUN, 5, 100) == 100
    assert sent == [RUN]


def test_what_the_kernel_leaves_of_a_run_is_copied_and_the_rest_of_it_is_for_others_to_append():
    settled, out = run_to([32 * 17, 17])
    assert settled == 64  # 32 at a time
    assert out.gather() == [TAILS[33 * 17 : 64 * 17]]
    assert out.flags == {"dirty"}
    assert out.send_run(b"MSG a 1", RUN, 5, 100) == 0


def test_what_is_left_of_a_run_may_be_max_pending_and_no_more():
    settled, out = run_to([17], max_pending=31 * 17)
    assert (settled, out.pending, out.close_reason) == (32, 31 * 17, CloseReason.NONE)
    settled, out = run_to([18], max_pending=30 * 17)
    assert settled == 1  # as many as were sent whole
    assert out.pending == 32 * 17 - 18
    assert out.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    assert not out.append(b"x")


def test_past_max_pending_a_peer_is_condemned_and_called():
    out = OutBufProbe(5000)
    assert out.append(b"x" * 2048)
    assert out.append(b"x" * 2952)  # exactly the limit
    assert out.flags == {"dirty"}
    while out.append(b"x"):
        pass
    assert out.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES
    assert "called" in out.flags
    assert out.pending == CHUNK  # inside a chunk nobody looks


def test_what_is_larger_than_max_pending_is_refused_by_an_empty_buffer_too():
    out = OutBufProbe(5000)
    assert not out.append(b"x" * 5001)
    assert out.close_reason == CloseReason.SLOW_CONSUMER_PENDING_BYTES


def test_a_kernel_that_takes_keeps_a_peer_under_its_limit():
    out = OutBufProbe(100_000, kernel=lambda pending: pending)
    for _ in range(1000):
        assert out.append(b"x" * 1000)
    assert out.close_reason == CloseReason.NONE


@pytest.mark.parametrize("prepare", [b"", b"x", b"x" * SMALL, b"x" * 100_000])
def test_a_condemned_peer_takes_nothing_more(prepare):
    out = OutBufProbe()
    if prepare:
        out.append(prepare)
    out.condemn(CloseReason.KICKED)
    assert not out.append(b"y")
    assert not out.append_blob(b"y" * 40_000)
    out.condemn(CloseReason.STALE_CONNECTION)
    assert out.close_reason == CloseReason.KICKED  # the first reason stays
    assert b"".join(out.gather()) == prepare  # what is there still goes out
    out.take(len(prepare))
    assert out.memory["in_use"] == 0


def test_a_released_peer_is_in_no_list_and_takes_nothing():
    out = OutBufProbe()
    out.append(b"x")
    out.condemn(CloseReason.KICKED)
    out.release()
    assert out.flags == set()
    assert not out.append(b"y")
    assert out.memory["in_use"] == 0


def test_a_link_past_its_mark_stalls_who_feeds_it_until_it_is_under_half():
    out = OutBufProbe(stall_mark=100_000)
    fed = 0
    while "stalling" not in out.flags:
        out.append(b"x" * 1000)
        fed += 1000
    assert 100_000 < fed <= 100_000 + 2 * CHUNK
    assert "behind" in out.flags
    out.take(out.pending - 50_000)
    assert "behind" in out.flags
    out.take(1)
    flags = out.flags
    assert "relieved" in flags and "behind" not in flags


@pytest.mark.parametrize(("quiet_us", "stalls"), [(1_999_999, True), (2_000_000, False)])
def test_a_client_stalls_its_feeder_only_if_it_took_bytes_lately(quiet_us, stalls):
    room = [10]
    out = OutBufProbe(10_000_000, stall_mark=100_000, kernel=lambda pending: room.pop() if room else 0)
    out.set_clock(1_000_000)
    out.append(b"x" * CHUNK)
    out.append(b"x")  # flushes: the kernel takes 10 bytes now
    out.set_clock(1_000_000 + quiet_us)
    for _ in range(300):
        out.append(b"x" * 1000)
    assert ("stalling" in out.flags) is stalls


def test_release_relieves_those_who_wait_for_it():
    out = OutBufProbe(stall_mark=1000)
    for _ in range(200):
        out.append(b"x" * 1000)
    assert {"behind", "stalling"} <= out.flags
    out.release()
    assert out.flags == {"relieved"}
