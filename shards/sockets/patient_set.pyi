from typing import final

from gnatswarm.shards.sockets.source import Source

@final
class PatientSet(Source):
    @property
    def n_sockets(self) -> int: ...
