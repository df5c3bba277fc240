"""Whether a test may be skipped because a server is not installed."""

from __future__ import annotations

import pytest

from tests.support.servers import BrokerUnavailable, Kind, oracle_is_required


def require(kind: Kind) -> None:
    """Skip when the oracle is absent and nobody insists on it; any other absent broker is a failure."""
    try:
        kind.command()
    except BrokerUnavailable as error:
        if kind.is_oracle and not oracle_is_required():
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)
