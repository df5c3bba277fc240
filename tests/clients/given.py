"""What every check of a Python client is given: numbers to send, and the log-in in its environment.

Imported from the directory of the script, because the scripts run without our packages, by a Python of their own.
"""

from __future__ import annotations

import os
import ssl
from typing import Any

NUMBERS = [str(n).encode() for n in range(100)]
DEADLINE_S = 30.0


def options() -> dict[str, Any]:
    """The options of connect() that all Python clients name alike."""
    given = os.environ
    found: dict[str, Any] = {"reconnect_time_wait": 0.05}
    if "NATS_TOKEN" in given:
        found["token"] = given["NATS_TOKEN"]
    if "NATS_USER" in given:
        found |= {"user": given["NATS_USER"], "password": given["NATS_PASSWORD"]}
    if "NATS_CA" in given:
        found["tls"] = ssl.create_default_context(cafile=given["NATS_CA"])
    return found
