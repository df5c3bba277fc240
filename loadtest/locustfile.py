"""Scenarios for locust, against any NATS server.

    locust -f loadtest/locustfile.py --host nats://127.0.0.1:4222                 the web page on port 8089
    locust -f loadtest/locustfile.py --headless -u 20 -r 20 -t 30s --tags fanout --csv out --html out.html

Choose with --tags or --scenario (the same names, several separated by commas), or by naming user classes; without any
of these it is `mixed`: what well-behaved clients do, side by side.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from locust import events, tag, task
from locust.exception import StopUser
from locust.runners import WorkerRunner

from gnatswarm.loadtest import natswire
from gnatswarm.loadtest.correctness import Stamp
from gnatswarm.loadtest.credentials import parse_url
from gnatswarm.loadtest.distributions import Zipf, payload_sizes
from gnatswarm.loadtest.natswire import BadCredentials, Credentials, Message, Settings
from gnatswarm.loadtest.users import STAMP_BYTES, NatsUser

MIXED = ("fanout", "request", "queue", "telemetry", "chat")
SCENARIOS = (*MIXED, "storm", "slow")
# A job must be reported done once within this time.
JOB_DEADLINE_S = 5.0
# How long to wait for the users that respond.
SUBSCRIBER_DEADLINE_S = 10.0


# Files for logging in, besides user, password or token in the URL. The variables are those of the nats command.
FILES = (
    ("--creds", "NATS_CREDS", "a .creds file or an nkey seed to log in with"),
    ("--tlsca", "NATS_CA", "certificates to trust with tls:// (default: the system's)"),
    ("--tlscert", "NATS_CERT", "the client's certificate, for servers that require one"),
    ("--tlskey", "NATS_KEY", "its key"),
)


@functools.cache
def settings_from(creds: str, ca: str, certificate: str, key: str) -> Settings:
    """NatsUser's settings with the contents of these files; BadCredentials."""
    credentials = Credentials.from_file(creds) if creds else NatsUser.settings.credentials
    tls = natswire.tls_context(ca, certificate, key) if ca or certificate or key else None
    return replace(NatsUser.settings, credentials=credentials, tls=tls)


def add_options(parser: Any) -> None:
    """Our own options, on the command line and on the web page."""
    group = parser.add_argument_group("NATS scenarios")

    def add(flag: str, is_on_page: bool = True, **words: Any) -> None:
        # locust's parser sets these attributes for its own options, but not for those of a group.
        option = group.add_argument(flag, **words)
        option.include_in_web_ui = is_on_page
        option.is_secret = option.is_required = option.is_multiple = False

    # Not on the web page: users are chosen before it is served.
    add(
        "--scenario",
        is_on_page=False,
        default="",
        env_var="NATS_SCENARIO",
        help=f"{', '.join(SCENARIOS)} or mixed; several separated by commas",
    )
    add("--rate", type=float, default=0.0, env_var="NATS_RATE", help="messages a second of each user (0: its default)")
    add("--payload", default="", env_var="NATS_PAYLOAD", help="bytes: 256, 16-4096 or lognormal:256:1.0")
    add("--subjects", type=int, default=100, env_var="NATS_SUBJECTS", help="how many different subjects (or rooms)")
    add(
        "--zipf",
        type=float,
        default=1.0,
        env_var="NATS_ZIPF",
        help="exponent of the Zipf distribution of subjects; 0: all equally frequent",
    )
    for flag, variable, what in FILES:
        add(flag, is_on_page=False, default="", metavar="FILE", env_var=variable, help=what)
    add("--even", action="store_true", env_var="NATS_EVEN", help="evenly spaced messages, instead of Poisson arrivals")


def wanted_scenarios(scenario: str, tags: Iterable[str]) -> set[str]:
    """The tags of the tasks that shall run; ValueError for an unknown name."""
    names = {name.strip() for name in scenario.split(",") if name.strip()} or set(tags) or {"mixed"}
    unknown = names - {*SCENARIOS, "mixed"}
    if unknown:
        raise ValueError(
            f"no scenario is called {', '.join(sorted(unknown))} (there are {', '.join(SCENARIOS)}, mixed)"
        )
    return (names - {"mixed"}) | (set(MIXED) if "mixed" in names else set())


def choose_users(environment: Any, **_: Any) -> None:
    """Leave out the users of scenarios that were not asked for."""
    options = environment.parsed_options
    if options is None or isinstance(environment.runner, WorkerRunner):
        return  # a worker does what its master says
    if getattr(options, "user_classes", None) or getattr(options, "class_picker", False):
        return
    try:
        names = wanted_scenarios(options.scenario, options.tags or ())
        payload_sizes(options.payload or "16")
        Zipf(options.subjects, options.zipf)
        if not 0 <= options.rate < float("inf"):
            raise ValueError("--rate is 0 or more")
        if options.host:
            parse_url(options.host)
        settings_from(options.creds, options.tlsca, options.tlscert, options.tlskey)
    except (ValueError, BadCredentials) as error:
        raise SystemExit(f"locust: {error}") from None
    if "mixed" in (options.tags or ()):
        options.tags = [*options.tags, *MIXED]
    environment.user_classes[:] = [user for user in environment.user_classes if user.scenario in names]


events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]
events.init.add_listener(choose_users)  # type: ignore[no-untyped-call]


class ScenarioUser(NatsUser):
    """Base of all users here: reads the options."""

    abstract = True
    scenario = ""
    default_payload = "64"

    def on_start(self) -> None:
        options = self.environment.parsed_options
        try:
            self.settings = settings_from(options.creds, options.tlsca, options.tlscert, options.tlskey)
            self._sizes = payload_sizes(options.payload or self.default_payload)
            self._subjects = Zipf(options.subjects, options.zipf)
        except (
            BadCredentials,
            ValueError,
        ) as error:  # a worker lacks its master's files, or a value from the web page is invalid
            self.record("CONNECT", "connect", 0.0, failure=error)
            raise StopUser from None
        if options.rate > 0:
            self.rate_per_s = options.rate
        self.is_poisson = not options.even
        super().on_start()

    def any_subject(self) -> int:
        """A random subject number, by --subjects and --zipf."""
        return self._subjects.draw(self.rng)

    def wait_subscriber(self, subject: str) -> None:
        """Wait, up to a limit, until somebody responds: locust starts users in any order. Not recorded."""
        deadline_s = time.monotonic() + SUBSCRIBER_DEADLINE_S
        while time.monotonic() < deadline_s and not self.is_stopping:
            try:
                self.client.request(subject, b"anybody there?", 1.0)
                break
            except natswire.NatsError:
                time.sleep(0.05)
        self.due_s = self._arrivals.due_s = time.monotonic()

    def any_size(self) -> int:
        """A random payload size, by --payload."""
        return max(STAMP_BYTES, self._sizes(self.rng))


class Listener(ScenarioUser):
    """A user that only receives."""

    abstract = True

    def listen(self) -> None:
        """Do nothing: deliveries arrive on the connection's own thread."""
        time.sleep(0.2)


# -- fan-out ----------------------------------------------------------------------------------------------------------


class FanoutPublisher(ScenarioUser):
    """Publishes on many subjects, on some of them much more often than on others."""

    scenario = "fanout"
    rate_per_s = 50.0
    weight = 2

    @tag("fanout")
    @task
    def say(self) -> None:
        self.publish_checked(f"load.fanout.{self.any_subject()}", self.any_size(), "fanout publish")


class FanoutSubscriber(Listener):
    """Receives and counts all messages of the fan-out publishers."""

    scenario = "fanout"
    weight = 4

    def on_start(self) -> None:
        super().on_start()
        self.subscribe_checked("load.fanout.>", "fanout delivery")

    @tag("fanout")
    @task
    def stay(self) -> None:
        self.listen()


# -- request and reply ------------------------------------------------------------------------------------------------


class Requester(ScenarioUser):
    """Sends requests, and checks that each response belongs to its request."""

    scenario = "request"
    rate_per_s = 20.0
    weight = 4

    def on_start(self) -> None:
        super().on_start()
        self.wait_subscriber("load.service")

    @tag("request")
    @task
    def ask(self) -> None:
        question = self.rng.randbytes(8) + bytes(self.any_size())
        answer = self.request("load.service", question, "request")
        if answer is not None and answer.payload != question:
            self.record("REQ", "request", None, failure=ValueError("the answer is to another question"))


class Responder(Listener):
    """Responds to requests; all responders are one queue group."""

    scenario = "request"
    fixed_count = 1

    def on_start(self) -> None:
        super().on_start()
        self.subscribe("load.service", lambda message: message.respond(message.payload), queue="responders")

    @tag("request")
    @task
    def stay(self) -> None:
        self.listen()


# -- queue workers ----------------------------------------------------------------------------------------------------


class JobPublisher(ScenarioUser):
    """Publishes jobs, and checks that each is reported done exactly once."""

    scenario = "queue"
    rate_per_s = 50.0
    weight = 2

    def on_start(self) -> None:
        super().on_start()
        self._waiting: dict[int, float] = {}
        self._inbox = f"load.done.{self._stamper.publisher}"
        self.subscribe(self._inbox, self._on_done)
        self.wait_subscriber("load.jobs")

    def _on_done(self, message: Message) -> None:
        stamp = Stamp.read(message.payload)
        if stamp is None:
            return
        is_known = self._waiting.pop(stamp.number, None) is not None
        fault = None if is_known else ValueError("a job was reported done that was not waiting: done twice?")
        self.record("JOB", "job done", stamp.latency_s(), len(message.payload), fault)

    @tag("queue")
    @task
    def hand_out(self) -> None:
        stamp = self._stamper.stamp("load.jobs", self.due_s)
        self._waiting[stamp.number] = time.monotonic()
        self.publish("load.jobs", stamp.payload(self.any_size()), "job", reply=self._inbox)
        long_ago = time.monotonic() - JOB_DEADLINE_S
        for number in [number for number, at in self._waiting.items() if at < long_ago]:
            del self._waiting[number]
            fault = TimeoutError(f"lost: a job was not done within {JOB_DEADLINE_S:g} s")
            self.record("JOB", "job done", None, failure=fault)


class Worker(Listener):
    """Does jobs, as a member of a queue group."""

    scenario = "queue"
    fixed_count = 2

    def on_start(self) -> None:
        super().on_start()
        self.subscribe("load.jobs", lambda message: message.respond(message.payload), queue="workers")

    @tag("queue")
    @task
    def stay(self) -> None:
        self.listen()


# -- telemetry fan-in -------------------------------------------------------------------------------------------------


class Sensor(ScenarioUser):
    """Publishes small messages often, on subjects of its own."""

    scenario = "telemetry"
    rate_per_s = 10.0
    weight = 8
    default_payload = "40-120"

    @tag("telemetry")
    @task
    def measure(self) -> None:
        metric = self.rng.choice(("temperature", "humidity", "power"))
        subject = f"load.telemetry.{self._stamper.publisher:x}.{metric}"
        self.publish_checked(subject, self.any_size(), "telemetry publish")


class Collector(Listener):
    """Receives the messages of all sensors."""

    scenario = "telemetry"
    fixed_count = 1

    def on_start(self) -> None:
        super().on_start()
        self.subscribe_checked("load.telemetry.*.*", "telemetry delivery")

    @tag("telemetry")
    @task
    def stay(self) -> None:
        self.listen()


# -- chat rooms -------------------------------------------------------------------------------------------------------


class ChatUser(ScenarioUser):
    """Moves from room to room: subscribes, publishes, receives its own and others' messages, unsubscribes."""

    scenario = "chat"
    rate_per_s = 5.0
    weight = 4

    def on_start(self) -> None:
        super().on_start()
        self._room = ""
        self._heard: set[int] = set()
        self._subscription: natswire.Subscription | None = None
        self._move()

    def _on_message(self, message: Message) -> None:
        stamp = Stamp.read(message.payload)
        if stamp is None:
            return
        if stamp.publisher == self._stamper.publisher:
            self._heard.add(stamp.number)
        self.record("SUB", "chat heard", stamp.latency_s(), len(message.payload))

    def _move(self) -> None:
        if self._subscription is not None:
            try:
                self._subscription.unsubscribe()
            except natswire.NatsError as error:
                self.record("SUB", "chat leave", None, failure=error)
        self._room = f"load.chat.{self.any_subject()}"
        self._heard.clear()
        self._subscription = self.subscribe(self._room, self._on_message)

    @tag("chat")
    @task(4)
    def talk(self) -> None:
        """Publish a message and send a PING; the message must arrive before the PONG."""
        stamp = self._stamper.stamp(self._room, self.due_s)
        is_sent = self.publish(self._room, stamp.payload(self.any_size()), "chat say")
        if is_sent and self.flush("chat flush"):
            fault = None if stamp.number in self._heard else ValueError("lost: our own words did not come back")
            self.record("CHAT", "own words", self.overdue_s, failure=fault)

    @tag("chat")
    @task(1)
    def move(self) -> None:
        """Change to another room."""
        self._move()


# -- connection storm -------------------------------------------------------------------------------------------------


class StormUser(ScenarioUser):
    """Connects, sends one message to itself, disconnects."""

    scenario = "storm"
    rate_per_s = 5.0

    @tag("storm")
    @task
    def come_and_go(self) -> None:
        client = self.connect(replace(self.settings, max_reconnects=0))
        failure: Exception | None
        subject = f"load.storm.{self._stamper.publisher:x}"
        start_s = time.perf_counter()
        try:
            subscription = client.subscribe(subject)
            client.publish(subject, b"hello")
            failure = None if subscription.next(self.request_timeout_s).payload == b"hello" else ValueError("not ours")
        except natswire.NatsError as error:
            failure = error
        finally:
            client.close()
        self.record("STORM", "subscribe, publish, receive", time.perf_counter() - start_s, failure=failure)


# -- slow consumers ---------------------------------------------------------------------------------------------------


class SlowConsumer(Listener):
    """Subscribes to everything and handles each message slowly; the server may close it for that."""

    scenario = "slow"
    fixed_count = 1
    pause_s = 0.5

    def on_start(self) -> None:
        super().on_start()
        self._is_over = threading.Event()
        self._begin()

    def on_stop(self) -> None:
        self._is_over.set()
        super().on_stop()

    def _begin(self) -> None:
        self.client.close()
        self.client = self.connect(replace(self.settings, max_reconnects=0, on_disconnect=None))
        self.subscribe("load.slow.>", lambda message: self._linger())

    def _linger(self) -> None:
        self._is_over.wait(self.pause_s)

    @tag("slow")
    @task
    def stay(self) -> None:
        self.listen()
        if not self.client.is_connected:
            self.record("SLOW", "closed by the server", None)
            self._begin()


class SlowPublisher(ScenarioUser):
    """Publishes many messages to slow and quick consumers."""

    scenario = "slow"
    rate_per_s = 100.0
    default_payload = "16384"
    weight = 1

    @tag("slow")
    @task
    def say(self) -> None:
        self.publish_checked("load.slow.news", self.any_size(), "publish beside a slow consumer")


class QuickConsumer(Listener):
    """Must receive everything in time, although another consumer is slow."""

    scenario = "slow"
    weight = 2

    def on_start(self) -> None:
        super().on_start()
        self.subscribe_checked("load.slow.>", "delivery beside a slow consumer")

    @tag("slow")
    @task
    def stay(self) -> None:
        self.listen()


# Public names, for users' own locustfiles.
__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, NatsUser)]
__all__ += ["add_options", "choose_users", "wanted_scenarios"]
