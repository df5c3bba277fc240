"""pytest plugin: fixtures that give a NATS-compatible broker to tests.

    async def test_orders_are_announced(gnatswarm):
        captured = await gnatswarm.acapture("orders.>")
        await shop(gnatswarm.url).order("tea")
        await captured.asettle()
        assert [message.json["item"] for message in captured.messages] == ["tea"]

`gnatswarm` is a broker that the tests of a session share: a process of its own, on a free port, started by the first
test that uses it. After each test the clients that it left connected are disconnected, so a test starts without
subscriptions, except those of longer-lived fixtures. Works with xdist (one broker per worker) and with and without
async tests.

    gnatswarm           the shared broker: a gnatswarm.BrokerProcess
    gnatswarm_fresh     one of this test's own
    gnatswarm_factory   several: gnatswarm_factory(shards=2, max_payload=1024)
    gnatswarm_client    a client of nats-py, connected to `gnatswarm` (needs nats-py and pytest-asyncio)
    gnatswarm_chaos     faults of its clients (lost, late, slow, stalled, cut) and its shards: a gnatswarm.Chaos
    gnatswarm_token, gnatswarm_users, gnatswarm_tls    shared ones that ask for a token, for users, that encrypt
    gnatswarm_session   the shared broker, for fixtures that live longer than a test
    gnatswarm_options   override it in conftest.py: options of every broker, as a dict

    @pytest.mark.gnatswarm_options(shards=4)           for one test, class or module
    gnatswarm_options = ["max_payload=4096"]           for all, in pytest's configuration

    --gnatswarm-url=nats://user:password@host:4222     or GNATSWARM_URL: `gnatswarm` is the server that runs there

Options are those of gnatswarm's configuration file, and embedded=True for a broker within the test process. When a
test fails, its report contains the log of its brokers during the test. A test fails if it forgets to await a coroutine
of a broker or a capture, or if it needs a package that is not installed. Importing this module imports no broker.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import importlib
import inspect
import ipaddress
import os
import time
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import pytest

if TYPE_CHECKING:
    import ssl
    from typing import Unpack

    from nats.aio.client import Client as NatsClient
    from pluggy import Result

    import gnatswarm as api

    _Ours = api.Broker | api.BrokerProcess

    class FactoryOptions(api.Keywords, total=False):
        """The options of the configuration file, and whether the broker is embedded."""

        embedded: bool

    class BrokerFactory(Protocol):
        """The type of the fixture `gnatswarm_factory`."""

        def __call__(self, **options: Unpack[FactoryOptions]) -> api.AnyBroker: ...


# How many brokers with different options keep running, besides those of the session's fixtures.
MOST_KEPT = 5
# A broker that was killed has ended by then.
ENDING_S = 1.0
# Of pytest-asyncio.
LOOP_SCOPES: tuple[Literal["function", "class", "module", "package", "session"], ...]
LOOP_SCOPES = "function", "class", "module", "package", "session"
MOST_LOG_LINES = 200
# Debug lines, because a failed test's report should show connections, and why clients were disconnected.
_DEFAULTS: dict[str, object] = {"shards": 1, "debug": True}

_used = pytest.StashKey[list[tuple["api.AnyBroker", int]]]()
_chaos = pytest.StashKey["api.Chaos"]()
_external_one = pytest.StashKey["api.ExternalBroker"]()
_pool = pytest.StashKey["_Pool"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gnatswarm")
    text = "a NATS server that runs already, for tests without options of their own (default: $GNATSWARM_URL)"
    group.addoption("--gnatswarm-url", metavar="URL", default=None, help=text)
    text = "of gnatswarm_chaos: the same seed has the same faults (default: 0)"
    group.addoption("--gnatswarm-seed", metavar="N", type=int, default=0, help=text)
    parser.addini("gnatswarm_options", "options of the brokers that tests get, name=value", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "gnatswarm_options(**options): options of the broker that this test gets from `gnatswarm`"
    )
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.register(_asyncio_fixtures(), "gnatswarm_asyncio")


def pytest_unconfigure(config: pytest.Config) -> None:
    pool = config.stash.get(_pool, None)
    if pool is not None:
        pool.close()


@pytest.hookimpl(hookwrapper=True)  # the form that older versions of pytest support too
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Result[pytest.TestReport], None]:
    report = (yield).get_result()
    if report.failed:
        for broker, start in item.stash.get(_used, []):
            lines = broker.log_since(start)
            if lines:
                where = broker.url if broker.starts else "not started"
                title = f"gnatswarm log ({where}, {report.when})"
                report.sections.append((title, "\n".join(lines[-MOST_LOG_LINES:])))
        chaos = item.stash.get(_chaos, None)
        if chaos is not None and chaos.happened:
            title = f"gnatswarm chaos (--gnatswarm-seed={chaos.seed}, {report.when})"
            report.sections.append((title, "\n".join(str(one) for one in chaos.happened[-MOST_LOG_LINES:])))
    if report.when == "teardown":  # pytest keeps all tests until the end
        if _used in item.stash:
            del item.stash[_used]
        if _chaos in item.stash:
            del item.stash[_chaos]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Result[None], None]:
    """Fail a test that did not await a coroutine of ours: it has done nothing, so the test has not tested it."""
    if _used not in item.stash:
        yield
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", r"coroutine '.*' was never awaited", RuntimeWarning)
        outcome = yield
    forgotten = []
    for warning in warned:
        if inspect.iscoroutine(warning.source) and _is_ours(warning.source.cr_code.co_filename):
            forgotten.append(warning.source.__qualname__.rpartition(".")[2])
        else:  # pytest's own list of warnings
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    if forgotten and outcome.exception is None:
        names = ", ".join(f"{name}()" for name in forgotten)
        outcome.force_exception(pytest.fail.Exception(_not_awaited(names, item), pytrace=False))


def _is_ours(path: str) -> bool:
    return Path(path).parent == Path(__file__).parent


def _not_awaited(names: str, item: pytest.Item) -> str:
    said = f"{names} was not awaited, and so did nothing"
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        return said
    if names == "connect()":
        return f"{said}: only a test with `async` can await it"
    return f"{said}: in a test without `async` call the method without the `a`"


# ------------------------------------------------------------------------------------------------ fixtures


@pytest.fixture(scope="session")
def gnatswarm_options(pytestconfig: pytest.Config) -> dict[str, object]:
    """Options of every broker; override it in conftest.py. The default is `gnatswarm_options` in the ini file."""
    found: dict[str, object] = {}
    for line in pytestconfig.getini("gnatswarm_options"):
        name, equals, text = line.partition("=")
        if not equals:
            pytest.fail(f"gnatswarm_options: {line!r}: expected name=value", pytrace=False)
        try:
            found[name.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = text.strip()
    return found


@pytest.fixture(scope="session")
def gnatswarm_session(pytestconfig: pytest.Config, gnatswarm_options: dict[str, object]) -> api.AnyBroker:
    """The broker that tests share, for fixtures that live longer than one; their clients stay connected."""
    return _external(pytestconfig) or _pool_of(pytestconfig).get(_dict(gnatswarm_options), stays=True)


@pytest.fixture
def gnatswarm(request: pytest.FixtureRequest, gnatswarm_options: dict[str, object]) -> Iterator[api.AnyBroker]:
    """A broker. Tests with the same options share it, one after the other."""
    external = _external(request.config) if not any(request.node.iter_markers("gnatswarm_options")) else None
    if external is None:
        yield from _lend(request, gnatswarm_options)
    else:
        captures = external._captures_now()
        yield external
        with _failing():
            external._close_captures_since(captures)


@pytest.fixture
def gnatswarm_factory(request: pytest.FixtureRequest, gnatswarm_options: dict[str, object]) -> Iterator[BrokerFactory]:
    """`gnatswarm_factory(**options)`: brokers of this test's own."""
    started: list[api.AnyBroker] = []

    def start(**options: Unpack[FactoryOptions]) -> api.AnyBroker:
        broker = _made(_merged(request, gnatswarm_options) | dict(options))
        _note(request, broker, 0)
        started.append(broker)
        return _started(broker)

    yield start
    with _failing(), contextlib.ExitStack() as stack:
        for broker in started:
            stack.callback(broker.stop)


@pytest.fixture
def gnatswarm_fresh(gnatswarm_factory: BrokerFactory) -> api.AnyBroker:
    """A broker that no other test uses."""
    return gnatswarm_factory()


@pytest.fixture
def gnatswarm_chaos(request: pytest.FixtureRequest, gnatswarm: api.AnyBroker) -> Iterator[api.Chaos]:
    """Faults that the test asks for: of clients of a proxy in front of `gnatswarm`, and of its shards.

    Its seed is --gnatswarm-seed (default: 0), which the report of a failed test names with what happened.
    """
    from gnatswarm import BrokerProcess, Chaos

    shards = gnatswarm if isinstance(gnatswarm, BrokerProcess) else None
    chaos = Chaos(gnatswarm.url, seed=request.config.getoption("gnatswarm_seed"), shards=shards)
    request.node.stash[_chaos] = chaos
    with chaos:
        yield chaos


@pytest.fixture
def gnatswarm_token(request: pytest.FixtureRequest, gnatswarm_options: dict[str, object]) -> Iterator[api.AnyBroker]:
    """A broker that requires a token: `gnatswarm_token.options.auth_token`, or `connect_options`."""
    yield from _lend(request, gnatswarm_options, token="secret-token")


@pytest.fixture
def gnatswarm_users(request: pytest.FixtureRequest, gnatswarm_options: dict[str, object]) -> Iterator[api.AnyBroker]:
    """A broker with the users alice (password wonderland, may everything) and bob (builder, may only subscribe)."""
    alice = {"user": "alice", "password": "wonderland"}
    bob = {"user": "bob", "password": "builder", "permissions": {"publish": {"deny": ">"}}}
    yield from _lend(request, gnatswarm_options, users=[alice, bob])


@pytest.fixture
def gnatswarm_tls(
    request: pytest.FixtureRequest, gnatswarm_options: dict[str, object], gnatswarm_certificates: Certificates
) -> Iterator[api.AnyBroker]:
    """A broker with TLS, with a certificate of `gnatswarm_certificates`."""
    tls = {"cert_file": gnatswarm_certificates.cert_file, "key_file": gnatswarm_certificates.key_file}
    yield from _lend(request, gnatswarm_options, tls=tls)


@pytest.fixture(scope="session")
def gnatswarm_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate authority for this session, and its certificate for localhost and 127.0.0.1."""
    _require("cryptography", "gnatswarm_certificates are made by cryptography: pip install 'gnatswarm[pytest]'")
    return _certificates(tmp_path_factory.mktemp("gnatswarm"))


@pytest.fixture
def gnatswarm_client() -> None:
    """A client of nats-py, connected to `gnatswarm`, closed after the test. Needs pytest-asyncio."""
    text = (
        "gnatswarm_client is an async fixture: pip install 'gnatswarm[pytest]' (it needs pytest-asyncio), "
        "or `await gnatswarm.connect()`"
    )
    pytest.fail(text, pytrace=False)


def _asyncio_fixtures() -> object:
    """Fixtures that need pytest-asyncio."""
    import pytest_asyncio

    class AsyncioFixtures:
        @pytest.fixture
        def gnatswarm_client(self, request: pytest.FixtureRequest) -> NatsClient:
            """A client of nats-py, connected to `gnatswarm`, closed after the test."""
            return cast("NatsClient", request.getfixturevalue(f"_gnatswarm_client_of_{_loop_scope(request)}"))

    # A client serves in the event loop in which it was connected: it has to be the test's.
    for scope in LOOP_SCOPES:
        name = f"_gnatswarm_client_of_{scope}"
        try:
            made = pytest_asyncio.fixture(loop_scope=scope, name=name)
        except TypeError:  # before 0.24
            made = pytest_asyncio.fixture(name=name)
        setattr(AsyncioFixtures, name, made(_client_fixture()))
    return AsyncioFixtures()


def _client_fixture() -> Callable[[object, api.AnyBroker], AsyncIterator[NatsClient]]:
    async def connected(_self: object, gnatswarm: api.AnyBroker) -> AsyncIterator[NatsClient]:
        _require("nats", "gnatswarm_client is a client of nats-py: pip install 'gnatswarm[pytest]'")
        client = await gnatswarm.connect()
        yield client
        if not client.is_closed:
            await client.close()

    return connected


def _loop_scope(request: pytest.FixtureRequest) -> str:
    """Whose event loop the test runs in, as pytest-asyncio decides it."""
    mark = request.node.get_closest_marker("asyncio")
    scope = (mark.kwargs.get("loop_scope") or mark.kwargs.get("scope")) if mark is not None else None
    if not scope:
        with contextlib.suppress(ValueError, KeyError):  # before 0.26
            scope = request.config.getini("asyncio_default_test_loop_scope")
    return scope if scope in LOOP_SCOPES else "function"


# ------------------------------------------------------------------------------------------------ brokers


class _Pool:
    """Running brokers by their options; those that fixtures of the session have are never stopped to make room."""

    def __init__(self) -> None:
        self._kept: dict[str, _Ours] = {}
        self._staying: set[str] = set()

    def get(self, options: dict[str, object], *, stays: bool = False) -> _Ours:
        """A running broker with these options; `stays`: until the session ends."""
        key = repr(sorted(options.items()))
        if stays:
            self._staying.add(key)
        broker = self._kept.pop(key, None)
        if broker is None:
            broker = _made(options)
            others = [one for one in self._kept if one not in self._staying]
            for oldest in others[: 1 - MOST_KEPT]:
                self._kept.pop(oldest).stop()
        self._kept[key] = broker  # the newest is the last
        if not broker.is_running:  # new, or a test has stopped it
            _started(broker)
        return broker

    def drop(self, broker: _Ours) -> None:
        """Stop a broker that cannot be lent again; the next test gets a new one."""
        for key, kept in list(self._kept.items()):
            if kept is broker:
                del self._kept[key]
        broker.stop()

    def close(self) -> None:
        """Stop all brokers."""
        for broker in self._kept.values():
            broker.stop()
        self._kept.clear()


def _external(config: pytest.Config) -> api.ExternalBroker | None:
    """The running server that --gnatswarm-url or GNATSWARM_URL names, once it answers; None: no name."""
    url = config.getoption("--gnatswarm-url") or os.environ.get("GNATSWARM_URL", "")
    if not url:
        return None
    broker = config.stash.get(_external_one, None)
    if broker is None:
        import gnatswarm as api

        problem = ""
        try:
            broker = config.stash[_external_one] = api.ExternalBroker(url)
        except ValueError as error:
            problem = str(error)
        if broker is None:
            pytest.fail(f"--gnatswarm-url: {problem}", pytrace=False)
    _started(broker)
    return broker


def _pool_of(config: pytest.Config) -> _Pool:
    return config.stash.setdefault(_pool, _Pool())


def _merged(request: pytest.FixtureRequest, base: dict[str, object], **own: object) -> dict[str, object]:
    """Options of the session, then of the fixture, then of the module, the class and the test."""
    options = _dict(base) | own
    for mark in reversed(list(request.node.iter_markers("gnatswarm_options"))):
        if mark.args:
            pytest.fail("gnatswarm_options takes keywords only, as in gnatswarm_options(shards=2)", pytrace=False)
        options |= mark.kwargs
    return options


def _dict(base: dict[str, object]) -> dict[str, object]:
    if not isinstance(base, dict):
        text = f"gnatswarm_options: the fixture returns a dict, as {{'shards': 2}}, not {type(base).__name__}"
        pytest.fail(text, pytrace=False)
    return base


def _made(options: dict[str, object]) -> _Ours:
    import gnatswarm as api

    given = _DEFAULTS | options
    is_embedded = given.pop("embedded", False)
    given.pop("chaos", None)  # all in processes of their own have it
    keywords = cast("api.Keywords", given)
    try:
        if not isinstance(is_embedded, bool):
            raise TypeError(f"embedded: expected True or False, not {is_embedded!r}")
        return api.Broker(**keywords) if is_embedded else api.BrokerProcess(chaos=True, **keywords)
    except (TypeError, api.ConfigError) as error:
        problem = str(error)
    pytest.fail(f"gnatswarm_options: {problem}", pytrace=False)


def _started(broker: api.AnyBroker) -> api.AnyBroker:
    with _failing():
        broker.start()
    return broker


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Turn a broker's error into a test failure without a traceback."""
    import gnatswarm as api

    problem = ""
    try:
        yield
    except api.BrokerFailed as error:
        problem = str(error)
    if problem:
        # The body's error is under way still, though the except block has ended: without `from None` pytest shows both.
        raise pytest.fail.Exception(problem, pytrace=False) from None


def _require(package: str, otherwise: str) -> None:
    """Fail the test if this package is missing: nobody would notice a skipped test."""
    is_there = True
    try:
        importlib.import_module(package)
    except ImportError:
        is_there = False
    if not is_there:
        pytest.fail(otherwise, pytrace=False)


def _note(request: pytest.FixtureRequest, broker: api.AnyBroker, start: int) -> None:
    request.node.stash.setdefault(_used, []).append((broker, start))


def _lend(request: pytest.FixtureRequest, base: dict[str, object], **own: object) -> Iterator[api.AnyBroker]:
    """Lend a broker of the pool to one test, and restore its state afterwards."""
    import gnatswarm as api

    pool = _pool_of(request.config)
    broker = pool.get(_merged(request, base, **own))
    _note(request, broker, broker.lines_logged)
    with _failing():
        try:
            shards, moment = broker.shard_count(), broker.next_client_id()
        except api.BrokerFailed:
            if not _ends(broker):
                raise
            _started(broker)
            shards, moment = broker.shard_count(), broker.next_client_id()
        options, starts, captures = broker.options, broker.starts, broker._captures_now()
    yield broker
    with _failing():
        try:
            broker._close_captures_since(captures)
            if broker.options != options:
                broker._undo_changes()
            if not broker.is_running:
                return
            if broker.shard_count() != shards:
                cast("api.BrokerProcess", broker).scale(shards)
            # A restart resets client ids.
            broker.disconnect_clients(moment if broker.starts == starts else 0)
        except api.BrokerFailed:
            if not _ends(broker):
                pool.drop(broker)
                raise


def _ends(broker: _Ours) -> bool:
    """Whether it does not answer because it is about to end: somebody has killed it."""
    until = time.monotonic() + ENDING_S
    while broker.is_running and time.monotonic() < until:
        time.sleep(0.01)
    return not broker.is_running


# ------------------------------------------------------------------------------------------------ certificates


@dataclass(frozen=True)
class Certificates:
    """PEM files, valid for a day."""

    ca_file: Path
    cert_file: Path
    key_file: Path

    @property
    def client_context(self) -> ssl.SSLContext:
        """A context for clients that trust this authority and check the host name."""
        import ssl

        return ssl.create_default_context(cafile=str(self.ca_file))


def _certificates(directory: Path) -> Certificates:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def signed(name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("gnatswarm test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority, hashes.SHA256())

    def written(name: str, data: bytes) -> Path:
        path = directory / name
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificates(
        written("ca.pem", signed("gnatswarm test authority", authority, constraints, identifier).public_bytes(pem)),
        written("server.pem", signed("localhost", key, names, issuer).public_bytes(pem)),
        written("server.key", private),
    )
