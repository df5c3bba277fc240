"""Locust users that speak NATS: subclass NatsUser, and write tasks.

    class Greeter(NatsUser):
        rate_per_s = 100

        @task
        def greet(self):
            self.request("greet.joe", b"hello")

Every operation is a locust request (CONNECT, PUB, SUB for a delivery, REQ, FLUSH), every fault a locust failure: lost,
duplicated and reordered messages too. Rates are an open model: a task is due at its scheduled time, and latencies count
from then, so that a pause of the server shows in all requests that it delayed. Times are kept to the
microsecond (locust alone rounds to milliseconds). They include delays of this process: see README.md.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gevent
from locust import User, events
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING

from gnatswarm.loadtest import natswire, submillisecond
from gnatswarm.loadtest.correctness import STAMP_BYTES, Ledger, Stamp, Stamper
from gnatswarm.loadtest.credentials import ANONYMOUS, parse_url
from gnatswarm.loadtest.distributions import Arrivals
from gnatswarm.loadtest.natswire import Client, Message, NatsError, Settings, Subscription

__all__ = ["STAMP_BYTES", "NatsUser", "Stamp"]

logger = logging.getLogger("gnatswarm.loadtest")

submillisecond.mend()


def heed_interrupt(**_: Any) -> None:
    """Make ^C end the run in any greenlet; in that of a connection it would only end the connection."""

    def interrupt() -> None:
        gevent.get_hub().parent.throw(KeyboardInterrupt)

    gevent.signal_handler(signal.SIGINT, interrupt)


def keep_login(environment: Any, **_: Any) -> None:
    """Take user, password and token out of --host: locust shows that on its page and in its reports."""
    try:
        address, credentials = parse_url(environment.host or "")
    except ValueError:
        return  # reported when the URL is used
    if credentials != ANONYMOUS:
        NatsUser.login = credentials
        environment.host = f"{'tls' if address.tls else 'nats'}://{address}"
        if environment.parsed_options is not None:
            environment.parsed_options.host = environment.host


def forget_lateness(**_: Any) -> None:
    NatsUser.most_behind_s = 0.0


def report_lateness(environment: Any, **_: Any) -> None:
    """Warn if the schedule could not be kept: the rates shown are then lower than requested."""
    behind_s = NatsUser.most_behind_s
    if behind_s < FAR_BEHIND_S:
        return
    cpu = getattr(environment.runner, "current_cpu_usage", 0)
    logger.warning(
        f"impossible rate: users fell up to {behind_s:.1f} s behind their schedule, and latencies contain that."
        f" This locust process used {cpu}% of a core: near 100 it measured itself (more --processes, a lower --rate),"
        " otherwise the server held it up"
    )


def wake_clock(**_named: object) -> None:
    """Have timers count from now: from before modules were read, as gevent does, `-t 2s` may be over at once."""
    gevent.get_hub().loop.update_now()


events.test_start.add_listener(forget_lateness)  # type: ignore[no-untyped-call]
events.test_stopping.add_listener(report_lateness)  # type: ignore[no-untyped-call]
events.init.add_listener(heed_interrupt)  # type: ignore[no-untyped-call]
events.init.add_listener(wake_clock)  # type: ignore[no-untyped-call]
events.init.add_listener(keep_login)  # type: ignore[no-untyped-call]

# Between two attempts to connect.
CONNECT_AGAIN_S = 0.5
# A user that is this far behind its schedule is overloaded.
FAR_BEHIND_S = 1.0
# Timers under gevent are whole milliseconds, rounded up, so a start up to this late counts as on time. The schedule is
# not moved for it, and later starts count in full.
TIMER_GRAIN_S = 0.0015
# While locust stops its users one by one, operations fail only because others have stopped.
STOPPING = (STATE_STOPPING, STATE_STOPPED, STATE_CLEANUP)


class NatsUser(User):
    """A user with a connection of its own, made when it starts and closed when it stops.

    `host` (locust's --host) is a NATS URL: nats://user:password@host:port. Class attributes are the settings.
    """

    abstract = True
    host = "nats://127.0.0.1:4222"
    rate_per_s: float = 1.0  # tasks per second of each user
    is_poisson = True  # False: evenly spaced
    request_timeout_s = 5.0
    settings = Settings(name="locust", max_reconnects=-1)
    most_behind_s = 0.0  # of all users of this process
    login = ANONYMOUS  # from --host; without one there, the settings' credentials are used
    client: Client

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.rng = random.Random()
        self.due_s = 0.0  # when the running task was due, on time.monotonic()'s clock
        self._arrivals: Arrivals
        self._stamper = Stamper()

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Connect; retry until a server accepts, and record each failure. A subclass must call this first."""
        self.client = self.connect()
        self.due_s = time.monotonic()
        self._arrivals = Arrivals(self.rate_per_s, self.due_s, self.rng, self.is_poisson)

    def __getattr__(self, name: str) -> Any:
        if name == "client":
            name = "client yet: an on_start() calls super().on_start() first"
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def on_stop(self) -> None:
        if hasattr(self, "client"):
            self.client.close()

    def connect(self, settings: Settings | None = None) -> Client:
        """A new connection, recorded as CONNECT; retries until there is one."""
        while True:
            start_s = time.perf_counter()
            try:
                chosen = settings or self._reporting(self.settings)
                if self.login != ANONYMOUS:
                    chosen = replace(chosen, credentials=self.login)
                client = Client(self.host or NatsUser.host, chosen)
                client.connect()
            except (NatsError, natswire.BadCredentials, natswire.ProtocolViolation, ValueError) as error:
                self.record("CONNECT", "connect", time.perf_counter() - start_s, failure=error)
                time.sleep(CONNECT_AGAIN_S)
                continue
            self.record("CONNECT", "connect", time.perf_counter() - start_s)
            return client

    def _reporting(self, settings: Settings) -> Settings:
        """The settings, with callbacks that record errors as failures."""
        return replace(
            settings,
            on_error=lambda error: self.record("ERROR", "server or callback", 0.0, failure=error),
            on_disconnect=lambda error: self.record("CONNECT", "disconnected", 0.0, failure=error),
        )

    # -- the schedule -------------------------------------------------------------------------------------------------

    def wait_time(self) -> float:
        """Wait until the next task is due, not at all if it is overdue. Returns 0: locust need not wait again."""
        scheduled_s = self._arrivals.next_s()
        behind_s = time.monotonic() - scheduled_s
        if behind_s > NatsUser.most_behind_s:
            NatsUser.most_behind_s = behind_s
        time.sleep(max(0.0, -behind_s))
        self.due_s = max(scheduled_s, min(time.monotonic(), scheduled_s + TIMER_GRAIN_S))
        return 0.0

    # -- operations ---------------------------------------------------------------------------------------------------

    def publish(self, subject: str, payload: bytes = b"", name: str = "", reply: str = "") -> bool:
        """Publish a message, recorded as PUB: from when the task was due until the socket took it."""
        try:
            self.client.publish(subject, payload, reply)
        except (NatsError, ValueError) as error:
            self.record("PUB", name or subject, self.overdue_s, failure=error)
            return False
        self.record("PUB", name or subject, self.overdue_s, len(payload))
        return True

    def publish_checked(self, subject: str, size_bytes: int = STAMP_BYTES, name: str = "", reply: str = "") -> bool:
        """Publish a stamped message; `subscribe_checked` reports if it is lost, duplicated or out of order."""
        return self.publish(subject, self._stamper.stamp(subject, self.due_s).payload(size_bytes), name, reply)

    def request(
        self, subject: str, payload: bytes = b"", name: str = "", headers: Mapping[str, str] | None = None
    ) -> Message | None:
        """The first response to a request, recorded as REQ from when the task was due; None: a failure was recorded."""
        try:
            answer = self.client.request(subject, payload, self.request_timeout_s, headers)
        except (NatsError, ValueError) as error:
            self.record("REQ", name or subject, self.overdue_s, failure=error)
            return None
        self.record("REQ", name or subject, self.overdue_s, len(answer.payload))
        return answer

    def subscribe(
        self, subject: str, callback: Callable[[Message], None] | None = None, queue: str = ""
    ) -> Subscription | None:
        """As Client.subscribe; None if it failed, which is recorded."""
        try:
            return self.client.subscribe(subject, callback, queue)
        except (NatsError, ValueError) as error:
            self.record("SUB", subject, 0.0, failure=error)
            return None

    def subscribe_checked(self, subject: str, name: str = "", queue: str = "") -> Subscription | None:
        """Subscribe and check: stamped deliveries are recorded as SUB from when they were due, errors as failures.

        Members of a queue group do not get every message: for them only duplicated and reordered messages are errors.
        """
        ledger = Ledger()

        def on_message(message: Message) -> None:
            stamp = Stamp.read(message.payload)
            if stamp is None:
                return
            fault = ledger.fault(message.subject, stamp)
            if queue and fault.startswith("lost"):
                fault = ""
            self.record(
                "SUB", name or subject, stamp.latency_s(), len(message.payload), DeliveryFault(fault) if fault else None
            )

        return self.subscribe(subject, on_message, queue)

    def flush(self, name: str = "flush") -> bool:
        """Wait for a PONG, recorded as FLUSH."""
        start_s = time.perf_counter()
        try:
            self.client.flush(self.request_timeout_s)
        except NatsError as error:
            self.record("FLUSH", name, time.perf_counter() - start_s, failure=error)
            return False
        self.record("FLUSH", name, time.perf_counter() - start_s)
        return True

    # -- recording ----------------------------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether locust has begun to stop its users."""
        return getattr(self.environment.runner, "state", "") in STOPPING

    @property
    def overdue_s(self) -> float:
        """Time since the running task was due."""
        return max(0.0, time.monotonic() - self.due_s)

    def record(
        self, kind: str, name: str, took_s: float | None, size_bytes: int = 0, failure: Exception | None = None
    ) -> None:
        """Count one operation in locust's statistics; `took_s` None: without a time."""
        if failure is not None and self.is_stopping:
            return
        self.environment.events.request.fire(
            request_type=kind,
            name=name.encode("utf-8", "backslashreplace").decode(),
            response_time=None if took_s is None else took_s * 1000,
            response_length=size_bytes,
            exception=failure,
            context={},
        )


class DeliveryFault(Exception):
    """A delivered message shows that another one was lost, duplicated or reordered."""
