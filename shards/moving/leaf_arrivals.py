"""Leaf nodes that came by WebSocket to some shard, at the gateway, to which that shard hands them over.

A shard accepts connections of the WebSocket port, and knows whose one is when its upgrade asks for the path of leaf
nodes. Then the descriptor goes the way of clients that move; with TLS it is one end of a socket pair, whose other end
the shard keeps. Not here: what a leaf node is (shards.gateway). Made by the worker.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from gnatswarm.broker.access.certificate_names import CertificateNames
from gnatswarm.shards.boundary.linkdir import path_for_moves
from gnatswarm.shards.moving.move_channel import (
    CHANNEL_VERSION,
    Door,
    HandedOver,
    Hello,
    Incoming,
    objection_to_descriptor,
)
from gnatswarm.shards.sockets.frozen_socket import FrozenSocket

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from gnatswarm.shards.moving.move_channel import Message
    from gnatswarm.shards.sockets.reserve import Reserve

logger = logging.getLogger("gnatswarm.moving")


class LeafNode(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A leaf node whose upgrade is done, and which has not been told INFO; the record of a HandedOver."""

    host: str  # its address
    port: int
    socket: FrozenSocket
    is_masked: bool  # the frames that it sends
    names: CertificateNames | None  # of its certificate, which only the shard that has its TLS sees


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LeafNode)


def encoded_leaf_node(leaf: LeafNode) -> bytes:
    """The record as bytes."""
    return _encoder.encode(leaf)


class LeafArrivals:
    """Takes leaf nodes from the shards of this broker; `take` owns the descriptor that it is given."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link_path: str,
        *,
        server_id: str,
        reserve: Reserve,
        take: Callable[[int, LeafNode], None],
    ) -> None:
        self._loop = loop
        self._server_id = server_id
        self._take = take
        self._incoming: list[Incoming] = []
        self._door = Door(loop, path_for_moves(link_path), self._on_accepted, reserve=reserve)

    def listen_anew(self) -> None:
        """Listen again at the same path, if its file was removed."""
        self._door.listen_anew()

    def close(self) -> None:
        """Take none any more."""
        self._door.close()
        for incoming in self._incoming:
            incoming.close()
        self._incoming = []

    def _on_accepted(self, sock: socket.socket) -> None:
        self._incoming.append(Incoming(self._loop, sock, self._on_message, self._on_way_ended))

    def _on_way_ended(self, incoming: Incoming, why: str) -> None:
        self._incoming = [one for one in self._incoming if one is not incoming]
        if why:
            logger.error("a way for leaf nodes from a shard ended: %s", why)

    def _on_message(self, incoming: Incoming, message: Message, fd: int) -> None:
        why = ""
        if isinstance(message, Hello):
            if message.version != CHANNEL_VERSION or message.server_id != self._server_id:
                why = "it is no shard of this version, or of another broker"
        elif isinstance(message, HandedOver):
            why = self._arrive(message.record, fd)
        else:
            why = "it speaks of moves"
        if why:
            logger.error("a leaf node from a shard is refused: %s", why)
            if fd >= 0:
                os.close(fd)
            incoming.close()
            self._incoming = [one for one in self._incoming if one is not incoming]

    def _arrive(self, record: bytes, fd: int) -> str:
        """Pass it on; returns why that is not possible, or ""."""
        why = objection_to_descriptor(fd)
        if why:
            return why
        try:
            leaf = _decoder.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"a record that is truncated or damaged: {error}"
        if leaf.socket.frames is None:
            return "a record without WebSocket"
        self._take(fd, leaf)
        return ""
