"""What is wrong with a broker, as one table: for the dashboard (`router.monitoring.alarms`) and for Prometheus.

deploy/alerts.py writes the alerts of deploy/prometheus from it, so both say the same. A condition names metrics of
`/metrics`, and gives its own PromQL. Pure; since when a condition holds is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Values at one moment: {metric: {shard: value}}, with the shard "" for a metric of the whole broker.
Values = Mapping[str, Mapping[str, float]]
Sample = tuple[float, Values]  # with its time in seconds, on a clock that never goes back


class Gauge(NamedTuple):
    """A gauge is over a bound, or under it; each shard by itself."""

    metric: str
    bound: float
    is_under: bool = False
    window_s: float = 0.0  # how far back the condition looks

    @property
    def needs(self) -> tuple[str, ...]:
        """The metrics that it looks at."""
        return (self.metric,)

    @property
    def promql(self) -> str:
        """The condition for Prometheus."""
        return f"gnatswarm_{self.metric} {'<' if self.is_under else '>'} {self.bound:g}"

    def holds(self, samples: Sequence[Sample]) -> dict[str, float]:
        """{shard: value} where it holds at the last sample; each condition has this method."""
        values = samples[-1][1].get(self.metric, {})
        if self.is_under:
            return {shard: value for shard, value in values.items() if value < self.bound}
        return {shard: value for shard, value in values.items() if value > self.bound}


class Share(NamedTuple):
    """A gauge, summed over the shards, is over this share of a gauge of the broker."""

    metric: str
    of: str
    share: float
    window_s: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        """The metrics that it looks at."""
        return self.metric, self.of

    @property
    def promql(self) -> str:
        """The condition for Prometheus."""
        return f"{_summed(_name(self.metric))} > {self.share:g} * max by (job, instance) ({_name(self.of)})"

    def holds(self, samples: Sequence[Sample]) -> dict[str, float]:
        """As Gauge.holds, for the shard ""."""
        values = samples[-1][1]
        found, whole = sum(values.get(self.metric, {}).values()), sum(values.get(self.of, {}).values())
        return {"": found} if found > self.share * whole else {}


class Fewer(NamedTuple):
    """A gauge of the broker is less than another."""

    metric: str
    than: str
    window_s: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        """The metrics that it looks at."""
        return self.metric, self.than

    @property
    def promql(self) -> str:
        """The condition for Prometheus."""
        return f"{_name(self.metric)} < {_name(self.than)}"

    def holds(self, samples: Sequence[Sample]) -> dict[str, float]:
        """As Gauge.holds, for the shard ""; not where one of them is unknown."""
        values = samples[-1][1]
        found, wanted = values.get(self.metric, {}).get(""), values.get(self.than, {}).get("")
        return {"": found} if found is not None and wanted is not None and found < wanted else {}


class Growth(NamedTuple):
    """Counters have grown by more than a bound within the window: each shard by itself, or all of them together.

    With `share_of` also by more than this share of what that counter has grown by.
    """

    metrics: tuple[str, ...]  # summed
    window_s: float
    bound: float
    is_summed: bool = True
    share_of: str = ""
    share: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        """The metrics that it looks at."""
        return (*self.metrics, self.share_of) if self.share_of else self.metrics

    @property
    def promql(self) -> str:
        """The condition for Prometheus."""
        grown = [self._increase(metric) for metric in self.metrics]
        if not self.is_summed:
            return f"{' + '.join(grown)} > {self.bound:g}"
        whole = " + ".join(_summed(one) for one in grown)
        if not self.share_of:
            return f"{whole} > {self.bound:g}"
        return f"{whole} > {self.bound:g} and {whole} > {self.share:g} * {_summed(self._increase(self.share_of))}"

    def _increase(self, metric: str) -> str:
        return f"increase({_name(metric)}[{self.window_s / 60:g}m])"

    def holds(self, samples: Sequence[Sample]) -> dict[str, float]:
        """As Gauge.holds; if summed, for the shard ""."""
        found: dict[str, float] = {}
        for metric in self.metrics:
            for shard, value in _grown(samples, metric, self.window_s).items():
                place = "" if self.is_summed else shard
                found[place] = found.get(place, 0.0) + value
        bound = self.bound
        if self.share_of:
            bound = max(bound, self.share * sum(_grown(samples, self.share_of, self.window_s).values()))
        return {shard: value for shard, value in found.items() if value > bound}


class Rate(NamedTuple):
    """A counter grows by more than a bound in a second, on average over the window; each shard by itself."""

    metric: str
    window_s: float
    bound: float

    @property
    def needs(self) -> tuple[str, ...]:
        """The metrics that it looks at."""
        return (self.metric,)

    @property
    def promql(self) -> str:
        """The condition for Prometheus."""
        return f"rate({_name(self.metric)}[{self.window_s / 60:g}m]) > {self.bound:g}"

    def holds(self, samples: Sequence[Sample]) -> dict[str, float]:
        """As Gauge.holds; nowhere before half of the window has passed."""
        last_s = samples[-1][0]
        took_s = last_s - min(at_s for at_s, _ in samples if at_s >= last_s - self.window_s)
        if took_s < self.window_s / 2:
            return {}
        grown = _grown(samples, self.metric, self.window_s)
        return {shard: value / took_s for shard, value in grown.items() if value / took_s > self.bound}


Condition = Gauge | Share | Fewer | Growth | Rate


class AlarmRule(NamedTuple):
    """One kind of trouble."""

    name: str
    severity: str  # "page": clients suffer now; "ticket": they will, or some do; "info"
    condition: Condition | None  # None: a broker cannot say it of itself
    for_s: float  # how long the condition must hold
    summary: str  # {broker} and {shard} stand for their names
    action: str  # what to do about it
    page: str = ""  # the monitoring page that says more
    comment: str = ""  # why it is so, where that is not plain


_name = "gnatswarm_{}".format


def _summed(expression: str) -> str:
    return f"sum by (job, instance) ({expression})"


def _grown(samples: Sequence[Sample], metric: str, window_s: float) -> dict[str, float]:
    """How much a counter has grown on each shard within the window. One that falls began again at 0."""
    since_s = samples[-1][0] - window_s
    found: dict[str, float] = {}
    before: dict[str, float] = {}
    for at_s, values in samples:
        if at_s < since_s:
            continue
        for shard, value in values.get(metric, {}).items():
            last = before.get(shard)
            if last is not None:
                found[shard] = found.get(shard, 0.0) + (value - last if value >= last else value)
            before[shard] = value
    return found


DOWN = 'up{job="gnatswarm"} == 0'

ALARM_RULES = (
    AlarmRule(
        "Down",
        "page",
        None,
        60,
        "{broker} does not answer",
        "See whether its process runs, and what its log says last.",
    ),
    AlarmRule(
        "Unhealthy",
        "page",
        Gauge("healthy", 1, is_under=True),
        30,
        "a shard of {broker} does not serve; /healthz says which",
        "The log says why the shard ended or is late. It is started again by itself; one that hangs is replaced.",
        "shardz",
    ),
    AlarmRule(
        "ShardRestarts",
        "page",
        Growth(("shard_deaths_total",), 900, 2, is_summed=False),
        0,
        "shard {shard} of {broker} dies again and again",
        "`gnatswarm status` and the log say how it ended. Out of memory: fewer clients or more memory.",
        "shardz",
    ),
    AlarmRule(
        "NearlyFull",
        "page",
        Share("connections", "max_connections", 0.9),
        300,
        "{broker} is near max_connections",
        "See who has them; raise max_connections (`gnatswarm reload`), or find clients that do not close.",
        "connz?sort=start",
    ),
    AlarmRule(
        "DescriptorsShort",
        "page",
        Gauge("descriptor_headroom", 1, is_under=True),
        60,
        "shard {shard} of {broker} has few descriptors left, and gets no new clients",
        "Raise the limit of open files (LimitNOFILE, ulimit -n) or the number of shards; `gnatswarm doctor` counts.",
        "shardz",
    ),
    AlarmRule(
        "ShardBusy",
        "ticket",
        Rate("shard_cpu_seconds_total", 300, 0.9),
        600,
        "shard {shard} of {broker} uses up its core",
        "If others idle: `gnatswarm rebalance`. If all are busy: `gnatswarm scale` to more, on more cores.",
        "shardz",
    ),
    AlarmRule(
        "LoopLag",
        "ticket",
        Gauge("loop_lag_seconds", 0.1),
        300,
        "the event loop of shard {shard} of {broker} is always late: clients wait",
        "Look for other processes on its cores, for swapping, and for one client that is hot.",
        "shardz",
        "One late tick means nothing: five minutes of them are what every message waits.",
    ),
    AlarmRule(
        "SlowConsumers",
        "ticket",
        Growth(("slow_consumers_total",), 600, 0, is_summed=False),
        0,
        "shard {shard} of {broker} closed clients that did not keep up; /slowz names them",
        "Make the client faster, spread its work over a queue group, or narrow what it subscribes to.",
        "slowz",
        "Each of them is a client that was cut off and may have lost messages. Its own end ends the cause: no `for`.",
    ),
    AlarmRule(
        "RefusedLogins",
        "ticket",
        Growth(("refused_logins_total",), 600, 20),
        0,
        "{broker} refuses log-ins: old credentials, or somebody guesses; the log has addresses",
        "Find the addresses in the log; correct the credentials, or block who guesses.",
        "connz?state=closed&sort=stop&auth=1",
    ),
    AlarmRule(
        "ReloadFailed",
        "ticket",
        Gauge("config_reload_failed_time_seconds", 0),
        60,
        "{broker} runs with older options: its last reload failed; the log says why",
        "`gnatswarm -t -c FILE` shows the errors; correct them, then `gnatswarm reload`.",
        "varz",
    ),
    AlarmRule(
        "HubMissing",
        "ticket",
        Fewer("hubs", "hubs_configured"),
        60,
        "{broker} is not connected to all of its hubs; /leafz has those that it is connected to",
        "The log says why a connection failed or ended. The broker tries again by itself.",
        "leafz",
    ),
    AlarmRule(
        "Denied",
        "info",
        Growth(("denied_messages_total", "denied_subscriptions_total"), 600, 0),
        0,
        "clients of {broker} do what their permissions do not allow; /deniedz has the users, the log the subjects",
        "Correct the client, or its user's permissions; `gnatswarm why SUBJECT --user NAME` names the rule.",
        "deniedz",
    ),
    AlarmRule(
        "ToNobody",
        "info",
        Growth(("unwanted_messages_total",), 600, 100, share_of="received_messages_total", share=0.05),
        0,
        "more than a twentieth of the messages of {broker} reach nobody; /subjectz has the subjects",
        "A subscriber may be missing, or a subject misspelled: `gnatswarm why SUBJECT` says who could get it.",
        "subjectz?sort=unwanted",
        "Messages without subscribers are no error in NATS; many of them usually are.",
    ),
)
