"""Steering: which listeners of a SO_REUSEPORT group new connections go to.

A classic BPF program on the group (SO_ATTACH_REUSEPORT_CBPF, no privilege needed) draws one of the chosen listeners at
random for each SYN. It does not use the packet's hash: with a network card without receive hashing that is 0 for every
packet, and random numbers spread as evenly. Invariant: a listener that is not chosen gets no new connection; those in
its queue stay there. Cost: at most 131 instructions per connection, none per byte.
"""

from __future__ import annotations

import array
import errno
import socket
import struct
from collections.abc import Sequence

SO_ATTACH_REUSEPORT_CBPF = 51

# <linux/filter.h>
_LOAD_WORD_ABSOLUTE = 0x20  # BPF_LD | BPF_W | BPF_ABS
_MODULO_CONSTANT = 0x94  # BPF_ALU | BPF_MOD | BPF_K
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_RETURN_CONSTANT = 0x06  # BPF_RET | BPF_K
_RETURN_ACCUMULATOR = 0x16  # BPF_RET | BPF_A
_RANDOM = -0x1000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def program(chosen: Sequence[int]) -> list[Instruction]:
    """Instructions that return one of these positions in the group, each with the same probability.

    A position is a listener's index in the order of listen() calls; when one is closed, the last takes its position.
    ValueError when none is chosen: a program cannot choose no listener, the kernel would then hash over all.
    """
    if not chosen:
        raise ValueError("at least one listener has to be chosen")
    if len(chosen) == 1:
        return [(_RETURN_CONSTANT, 0, 0, chosen[0])]
    drawn: list[Instruction] = [(_LOAD_WORD_ABSOLUTE, 0, 0, _RANDOM), (_MODULO_CONSTANT, 0, 0, len(chosen))]
    if list(chosen) == list(range(len(chosen))):
        return [*drawn, (_RETURN_ACCUMULATOR, 0, 0, 0)]
    for number, position in enumerate(chosen[:-1]):
        drawn += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN_CONSTANT, 0, 0, position)]
    return [*drawn, (_RETURN_CONSTANT, 0, 0, chosen[-1])]


def attach(listener: socket.socket, instructions: Sequence[Instruction]) -> None:
    """Attach to the whole group of this listener, replacing the old program. OSError where the kernel cannot."""
    code = b"".join(struct.pack("=HBBI", op, yes, no, k & 0xFFFFFFFF) for op, yes, no, k in instructions)
    held = array.array("B", code)  # ITS ADDRESS IS VALID WHILE `held` LIVES: the kernel copies within setsockopt
    address, _ = held.buffer_info()
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, struct.pack("@HP", len(instructions), address))


class Steering:
    """The present choice for one group of listeners."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = listeners
        self._chosen: tuple[int, ...] | None = None
        self._is_late = False  # chosen, not attached yet
        self.error: OSError | None = None  # set once attaching failed: the kernel hashes over all listeners

    @property
    def works(self) -> bool:
        """False when connections cannot be steered on this system."""
        return self.error is None

    @property
    def chosen(self) -> tuple[int, ...]:
        """Positions that get new connections; empty before the first choice."""
        return self._chosen or ()

    def choose(self, positions: Sequence[int]) -> bool:
        """Send new connections to these only; an empty choice keeps the last one. True when it changed.

        Connections already in a queue are not moved. A listener that is alone may be in no group yet to which a program
        could be attached, and needs none: the first call after another one was opened attaches it.
        """
        wanted = tuple(sorted(positions))
        if not wanted or self.error is not None or (wanted == self._chosen and not self._is_late):
            return False
        try:
            attach(self._listeners[0], program(wanted))
            self._is_late = False
        except OSError as error:
            self._is_late = len(self._listeners) == 1 and error.errno == errno.EINVAL
            if not self._is_late:
                self.error = error
                return False
        has_changed, self._chosen = wanted != self._chosen, wanted
        return has_changed
