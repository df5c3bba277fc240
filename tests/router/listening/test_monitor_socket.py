"""A host of the monitoring pages that is no host name is an error."""

from __future__ import annotations

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.listening import monitor_socket
from gnatswarm.router.listening.listeners import ListenError


@pytest.mark.parametrize("name", ["a..b", "é..x"])
def test_a_name_that_cannot_be_one_stops_the_start(name: str) -> None:
    with pytest.raises(ListenError, match="Can't start monitoring: .*" + name):
        monitor_socket.listen(Options(http_host=name, http_port=-1))
