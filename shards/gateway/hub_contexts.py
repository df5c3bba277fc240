"""The ssl contexts of hubs, one for all remotes with the same options of TLS: to read authorities takes 20 ms.

A context is made for the first dial with TLS, and kept until a reload that needs it no more. Without ca_file it holds
the system's authorities, which are read again after every reload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ssl import SSLContext

    from gnatswarm.broker.options import ClientTls


class HubContexts:
    """Those of one gateway."""

    def __init__(self) -> None:
        self._made: dict[ClientTls, SSLContext] = {}

    def of(self, tls: ClientTls) -> SSLContext:
        """The context for a hub with these options, which have what is in their files. Raises CertificateError."""
        context = self._made.get(tls)
        if context is None:
            # Imported here, so that a hub without TLS does not load ssl.
            from gnatswarm.shards.boundary.certificates import client_context

            context = self._made[tls] = client_context(tls, is_insecure=tls.insecure)
        return context

    def reload(self, wanted: Iterable[ClientTls]) -> None:
        """Keep those of these options that name their authorities."""
        kept = frozenset(wanted)
        self._made = {tls: context for tls, context in self._made.items() if tls.ca_file and tls in kept}
