from typing import final

from gnatswarm.shards.sockets.patience import Patience
from gnatswarm.shards.sockets.source import Source

@final
class PatientSet(Source):
    @property
    def patience(self) -> Patience: ...
    @property
    def n_sockets(self) -> int: ...
