"""Given to locust beside a locustfile: its tables and its workers' reports come ten times as often as by default.

What tests wait for is then seen when it has happened, and not up to two seconds later. It has no users of its own.
"""

from __future__ import annotations

import locust.runners
import locust.stats

locust.stats.CONSOLE_STATS_INTERVAL_SEC = 0.2  # type: ignore[assignment]
locust.stats.CSV_STATS_INTERVAL_SEC = 0.1  # type: ignore[assignment]
locust.runners.WORKER_REPORT_INTERVAL = 0.3
