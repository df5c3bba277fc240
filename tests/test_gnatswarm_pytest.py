"""The pytest plugin, in pytest runs of their own, as somebody who has just installed it writes them."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest
from _pytest.config import default_plugins

import gnatswarm
from gnatswarm import embedding
from tests.support.forkserver import Ran, forkserver
from tests.support.servers import wait_pids_gone

pytest_plugins = ["pytester"]

# A run starts pytest and a broker; on a busy machine with two xdist workers that takes seconds.
DEADLINE_S = 90


@pytest.fixture(autouse=True)
def _plain(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)
    pytester.makeini("[pytest]\nasyncio_mode = auto\n")


PYTEST = ["pytest", "-p", "no:cacheprovider"]
# Importing these takes longer than most of these runs, and has nothing to do with what they show.
WITHOUT_OTHERS = ["-p", "no:hypothesispytest", "-p", "no:locust"]
# What most of these runs import. No plugins, and nothing of ours: pytest imports those itself, and rewrites asserts.
OF_PYTEST = [f"_pytest.{name}" for name in default_plugins]
IMPORTED = (*OF_PYTEST, "asyncio", "ipaddress", "nats", "msgspec", "unittest.mock", "urllib.parse", "uvloop")
PROGRAM = "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"


def run(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    """Forked from a process that has imported pytest, which takes longer than most of these runs."""
    pytester.makepyfile(test_it=text)
    done = forked(pytester, *arguments)
    print(done.stdout, done.stderr, sep="\n")
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def forked(pytester: pytest.Pytester, *arguments: str) -> Ran:
    words = [*PYTEST, *WITHOUT_OTHERS, *arguments]
    return forkserver(*IMPORTED).run(words, PROGRAM, DEADLINE_S, directory=pytester.path)


def run_program(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    """As it is started by a user, with nothing imported before."""
    pytester.makepyfile(test_it=text)
    return pytester.run(sys.executable, "-P", "-m", *PYTEST, *arguments, timeout=DEADLINE_S)


def publishing(body: str) -> str:
    """A test file with `publish(broker, *subjects)`, which needs no client library."""
    return (
        "import os, socket, pytest\n\n"
        "def publish(broker, *subjects, login='{}'):\n"
        "    sock = socket.create_connection((broker.host, broker.port))\n"
        "    lines = ''.join(f'PUB {subject} 1\\r\\nx\\r\\n' for subject in subjects)\n"
        "    sock.sendall(f'CONNECT {login}\\r\\n{lines}PING\\r\\n'.encode())\n"
        "    said = b''\n"
        "    while b'PONG\\r\\n' not in said:\n"
        "        data = sock.recv(4096)\n"
        "        assert data, said\n"
        "        said += data\n"
        "    return sock\n\n"
    ) + body


FIRST_FIVE_LINES = """
async def test_hello(gnatswarm, gnatswarm_client):
    captured = await gnatswarm.acapture("greet.*")
    await gnatswarm_client.publish("greet.you", b"hello")
    await gnatswarm_client.flush()
    await captured.asettle()
    assert captured.payloads == [b"hello"]
"""


def test_the_first_five_lines(pytester: pytest.Pytester):
    """Beside every plugin that is installed."""
    run_program(pytester, FIRST_FIVE_LINES).assert_outcomes(passed=1)


def test_nothing_of_a_test_is_seen_by_the_next(pytester: pytest.Pytester):
    text = publishing("""
leaked = []

def test_one(gnatswarm):
    leaked.append(publish(gnatswarm))
    leaked[0].sendall(b"SUB > 1\\r\\nPING\\r\\n")
    leaked.append(gnatswarm.capture(">"))
    leaked.append(gnatswarm.pid)

def test_two(gnatswarm):
    assert gnatswarm.pid == leaked[2]                    # the same broker,
    assert gnatswarm.status().connections == 0           # with nobody there
    leaked[0].settimeout(30)
    while leaked[0].recv(4096):
        pass
    publish(gnatswarm, "a").close()
    assert leaked[1].messages == []
""")
    run(pytester, text).assert_outcomes(passed=2)


def test_clients_of_longer_lived_fixtures_stay(pytester: pytest.Pytester):
    text = publishing("""
@pytest.fixture(scope="session")
def app(gnatswarm_session):
    with publish(gnatswarm_session) as sock:
        sock.sendall(b"SUB work 1\\r\\nPING\\r\\n")
        assert b"PONG" in sock.recv(100)
        yield sock

@pytest.mark.parametrize("n", range(3))
def test_it_hears(app, gnatswarm, n):
    publish(gnatswarm, "work")
    assert b"MSG work 1 1" in app.recv(100)
""")
    run(pytester, text).assert_outcomes(passed=3)


def test_captures_of_longer_lived_fixtures_stay(pytester: pytest.Pytester):
    text = publishing("""
@pytest.fixture(scope="session")
def everything(gnatswarm_session):
    return gnatswarm_session.capture(">")

of_tests = []

@pytest.mark.parametrize("n", range(3))
def test_it_collects(everything, gnatswarm, n):
    assert all(captured.is_closed for captured in of_tests)
    of_tests.append(gnatswarm.capture("work"))
    publish(gnatswarm, "work")
    everything.settle()
    assert len(everything) == n + 1
    if n == 1:
        gnatswarm.restart()
""")
    run(pytester, text).assert_outcomes(passed=3)


def test_a_restart_and_a_killed_shard_are_survived(pytester: pytest.Pytester):
    text = publishing("""
def test_restart(gnatswarm):
    captured = gnatswarm.capture("a")
    publish(gnatswarm, "a")
    gnatswarm.restart()
    publish(gnatswarm, "a")
    gnatswarm.kill_shard()
    publish(gnatswarm, "a")
    captured.settle()
    assert captured.subjects == ["a"] * 3

def test_after_it(gnatswarm):
    assert gnatswarm.status().connections == 0
    gnatswarm.stop()

def test_after_that(gnatswarm):
    publish(gnatswarm, "a")

def test_changes_it(gnatswarm):
    gnatswarm.scale(2)
    gnatswarm.reload(token="x")

def test_after_the_change(gnatswarm):
    assert gnatswarm.shard_count() == 1
    publish(gnatswarm, "a")
""")
    run(pytester, text).assert_outcomes(passed=5)


def test_fixtures_of_the_session_keep_their_broker(pytester: pytest.Pytester):
    """Whatever tests do to it, and however many others they have."""
    text = publishing("""
@pytest.fixture(scope="session")
def app(gnatswarm_session):
    with publish(gnatswarm_session) as sock:
        sock.sendall(b"SUB work 1\\r\\nPING\\r\\n")
        assert b"PONG" in sock.recv(100)
        yield gnatswarm_session, sock, gnatswarm_session.url

@pytest.mark.gnatswarm_options(max_payload=99)
def test_first(gnatswarm):
    pass

def test_reloads_it(app, gnatswarm):
    gnatswarm.reload(max_payload=1000)
    gnatswarm.scale(2)

@pytest.mark.parametrize("n", range(7))
def test_others(request, n):
    request.node.add_marker(pytest.mark.gnatswarm_options(max_payload=n + 100))
    request.getfixturevalue("gnatswarm")

def test_its_clients_are_still_there(app, gnatswarm):
    broker, sock, url = app
    assert broker is gnatswarm and gnatswarm.url == url
    assert gnatswarm.options.limits.max_payload_bytes == 1048576 and gnatswarm.shard_count() == 1
    publish(gnatswarm, "work")
    assert b"MSG work 1 1" in sock.recv(100)

def test_stops_it(gnatswarm):
    gnatswarm.reload(token="x", write_deadline="5s")
    gnatswarm.stop()

def test_it_is_where_it_was_and_as_it_was(app, gnatswarm):
    broker, _sock, url = app
    assert broker is gnatswarm and gnatswarm.url == url
    publish(gnatswarm, "work")
    assert "token" not in gnatswarm.connect_options and gnatswarm.options.limits.write_deadline_s == 10
""")
    run(pytester, text).assert_outcomes(passed=12)


def test_a_broker_that_a_test_kills_is_started_again(pytester: pytest.Pytester):
    text = publishing("""
import signal

@pytest.mark.parametrize("n", range(3))
def test_kills_it(gnatswarm, n):
    publish(gnatswarm, "a")
    os.kill(gnatswarm.pid, signal.SIGKILL)
""")
    run(pytester, text).assert_outcomes(passed=3)


def test_a_killed_broker_that_still_answers_is_started_again(pytester: pytest.Pytester):
    """Its processes end one after the other."""
    text = publishing("""
import signal
from gnatswarm import BrokerProcess

about_to_end = []
count = BrokerProcess.shard_count

def last_answer(broker):
    found = count(broker)
    if about_to_end:
        about_to_end.clear()
        os.kill(broker.pid, signal.SIGKILL)
        while broker.is_running:
            pass
    return found

BrokerProcess.shard_count = last_answer

@pytest.fixture
def killed():
    about_to_end.append(True)

def test_before(gnatswarm):
    publish(gnatswarm, "a")

def test_it(killed, gnatswarm):
    publish(gnatswarm, "a")
    assert not about_to_end
""")
    run(pytester, text).assert_outcomes(passed=2)


def test_a_client_serves_in_the_event_loop_of_its_test(pytester: pytest.Pytester):
    text = """
import pytest

async def hears(gnatswarm, client):
    captured = await gnatswarm.acapture("a")
    await client.publish("a")
    await client.flush(timeout=30)
    await captured.areceive()

@pytest.mark.asyncio(loop_scope="session")
async def test_session(gnatswarm, gnatswarm_client):
    await hears(gnatswarm, gnatswarm_client)

@pytest.mark.asyncio(loop_scope="module")
async def test_module(gnatswarm, gnatswarm_client):
    await hears(gnatswarm, gnatswarm_client)

async def test_plain(gnatswarm, gnatswarm_client):
    await hears(gnatswarm, gnatswarm_client)
"""
    run(pytester, text).assert_outcomes(passed=3)
    run(pytester, text, "-o", "asyncio_default_test_loop_scope=session").assert_outcomes(passed=3)


def test_options_come_from_the_ini_file_the_fixture_and_the_marker(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\ngnatswarm_options =\n    max_payload=4096\n    server_name=from-ini\n    shards=2\n")
    text = """
import pytest

def test_ini(gnatswarm):
    assert (gnatswarm.options.limits.max_payload_bytes, gnatswarm.options.server_name) == (4096, "from-ini")
    assert gnatswarm.shard_count() == 2

@pytest.mark.gnatswarm_options(max_payload=1, shards=1)
class TestMarked:
    def test_class(self, gnatswarm):
        assert (gnatswarm.options.limits.max_payload_bytes, gnatswarm.options.server_name) == (1, "from-ini")

    @pytest.mark.gnatswarm_options(max_payload=2)
    def test_nearest(self, gnatswarm, gnatswarm_fresh):
        assert gnatswarm.options.limits.max_payload_bytes == gnatswarm_fresh.options.limits.max_payload_bytes == 2
        assert gnatswarm.port != gnatswarm_fresh.port
"""
    run(pytester, text).assert_outcomes(passed=3)
    pytester.makeconftest(
        "import pytest\n\n@pytest.fixture(scope='session')\n"
        "def gnatswarm_options():\n    return {'server_name': 'mine'}\n"
    )
    text = "def test_it(gnatswarm):\n    assert gnatswarm.options.server_name == 'mine'\n"
    run(pytester, text).assert_outcomes(passed=1)


def test_tests_with_the_same_options_share_a_broker(pytester: pytest.Pytester):
    text = """
import pytest

seen = set()

@pytest.mark.parametrize("n", range(8))
@pytest.mark.parametrize("size", range(1, 7))
def test_it(gnatswarm_session, request, size, n):
    request.applymarker(pytest.mark.gnatswarm_options(max_payload=size)) if n < 3 else None
    broker = request.getfixturevalue("gnatswarm")
    seen.add(broker.pid)
    assert gnatswarm_session.is_running

def test_how_many():
    assert len(seen) == 7
"""
    run(pytester, text, "-q").assert_outcomes(passed=49)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("max_paylod=1", "gnatswarm_options: gnatswarm.BrokerProcess(): there is no option 'max_paylod'; did you mean"),
        ("ping_max='x'", "gnatswarm_options: gnatswarm.BrokerProcess(): ping_max: expected a number, not text"),
        ("embedded=True, shards=3", "gnatswarm_options: gnatswarm.Broker(): shards needs a broker in a process"),
        ("embedded='no'", "gnatswarm_options: embedded: expected True or False, not 'no'"),
        ("4", "gnatswarm_options takes keywords only, as in gnatswarm_options(shards=2)"),
        (
            r"server_name='\udcff'",
            "gnatswarm_options: gnatswarm.BrokerProcess(): the value of server_name is not UTF-8",
        ),
    ],
)
def test_a_bad_option_is_said_without_a_traceback(pytester: pytest.Pytester, options: str, said: str):
    text = f"import pytest\n@pytest.mark.gnatswarm_options({options})\ndef test_it(gnatswarm):\n    pass\n"
    result = run(pytester, text)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said.replace('[', '[[]')}*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_bad_options_for_all_are_said_without_a_traceback(pytester: pytest.Pytester):
    text = "def test_it(gnatswarm):\n    pass\n\ndef test_session(gnatswarm_session):\n    pass\n"
    pytester.makeini("[pytest]\ngnatswarm_options = max_payload\n")
    result = run(pytester, text)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["gnatswarm_options: 'max_payload': expected name=value"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")
    pytester.makeini("[pytest]\n")
    pytester.makeconftest("import pytest\n\n@pytest.fixture(scope='session')\ndef gnatswarm_options():\n    pass\n")
    result = run(pytester, text)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["gnatswarm_options: the fixture returns a dict, as {'shards': 2}, not NoneType"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_the_log_of_a_failed_test_is_in_its_report(pytester: pytest.Pytester):
    text = publishing("""
def test_before(gnatswarm):
    publish(gnatswarm, login='{"name": "not ours"}')

def test_fails(gnatswarm):
    publish(gnatswarm, "bad subject and more")

def test_passes(gnatswarm):
    pass
""")
    result = run(pytester, text)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*- gnatswarm log (nats://127.0.0.1:*, call) -*", "*DBG*Client connection created*"])
    assert result.stdout.str().count("Client connection created") == 1


def test_variants_ask_for_what_they_say(pytester: pytest.Pytester):
    text = publishing("""
import asyncio, ssl
import nats

async def test_token(gnatswarm_token):
    with pytest.raises(AssertionError, match="Authorization Violation"):
        publish(gnatswarm_token)
    await (await nats.connect(gnatswarm_token.url, token=gnatswarm_token.options.auth_token)).close()
    await (await gnatswarm_token.connect()).close()

async def test_users(gnatswarm_users):
    captured = await gnatswarm_users.acapture(">")
    alice = await nats.connect(gnatswarm_users.url, user="alice", password="wonderland")
    await alice.publish("a")
    await alice.close()
    said = asyncio.get_running_loop().create_future()
    async def on_error(error):
        said.done() or said.set_result(str(error))
    bob = await nats.connect(gnatswarm_users.url, user="bob", password="builder", error_cb=on_error)
    await bob.publish("b")
    assert "permissions violation" in (await asyncio.wait_for(said, 30)).lower()
    await bob.close()
    await captured.asettle()
    assert captured.subjects == ["a"]

async def test_tls(gnatswarm_tls, gnatswarm_certificates):
    client = await nats.connect(gnatswarm_tls.url, tls=gnatswarm_certificates.client_context)
    captured = await gnatswarm_tls.acapture("a")
    await client.publish("a", b"x")
    await client.flush()
    await captured.asettle()
    assert captured.payloads == [b"x"]
    await client.close()
    with pytest.raises(ssl.SSLError):
        await nats.connect(gnatswarm_tls.url, tls=ssl.create_default_context(), allow_reconnect=False)
""")
    run(pytester, text).assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("module", "test", "said"),
    [
        (
            "cryptography",
            "def test_it(gnatswarm_tls)",
            "certificates are made by cryptography: pip install 'gnatswarm[[]pytest]'",
        ),
        (
            "nats",
            "async def test_it(gnatswarm_client)",
            "gnatswarm_client is a client of nats-py: pip install 'gnatswarm[[]pytest]'",
        ),
    ],
)
def test_a_package_that_is_missing_fails_the_test_that_needs_it(
    pytester: pytest.Pytester, module: str, test: str, said: str
):
    pytester.makeconftest(f"import sys\nsys.modules[{module!r}] = None\n")
    result = run(pytester, f"{test}:\n    pass\ndef test_other(gnatswarm):\n    pass\n")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([f"*{said}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*another exception*")


def test_connecting_without_nats_py_says_what_to_install(pytester: pytest.Pytester):
    pytester.makeconftest("import sys\nsys.modules['nats'] = None\n")
    result = run(pytester, "async def test_it(gnatswarm):\n    await gnatswarm.connect()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * ImportError: connect() needs the NATS client for Python: pip install nats-py"])
    result.stdout.no_fnmatch_line("*another exception*")


def test_without_pytest_asyncio_the_client_fails_with_the_reason(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\n")
    result = run(pytester, "def test_it(gnatswarm_client):\n    pass\n", "-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gnatswarm_client is an async fixture: pip install 'gnatswarm[[]pytest]'*"])


def test_the_extra_brings_everything_that_a_fixture_may_miss():
    import tomllib

    extras = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    names = {re.split("[<>=]", line)[0] for line in extras["optional-dependencies"]["pytest"]}
    assert names == {"pytest", "pytest-asyncio", "nats-py", "cryptography"}


EXTERNAL = publishing("""
def test_it(gnatswarm, gnatswarm_session):
    assert gnatswarm is gnatswarm_session
    assert gnatswarm.url == os.environ["EXPECTED"]
    captured = gnatswarm.capture("a")
    publish(gnatswarm, "a", login='{"auth_token":"s3/cret"}').close()
    captured.settle()
    assert captured.subjects == ["a"]

async def test_async(gnatswarm, gnatswarm_client):
    async with gnatswarm as same:
        captured = await same.acapture("b")
        await gnatswarm_client.publish("b", b"x")
        await gnatswarm_client.flush()
        await captured.asettle()
        assert captured.payloads == [b"x"]

@pytest.mark.gnatswarm_options(max_payload=4096)
def test_with_options_of_its_own(gnatswarm):
    assert gnatswarm.options.limits.max_payload_bytes == 4096
    assert gnatswarm.url != os.environ["EXPECTED"]

def test_fresh(gnatswarm_fresh):
    gnatswarm_fresh.restart()
    assert gnatswarm_fresh.url != os.environ["EXPECTED"]
""")


@pytest.mark.parametrize("way", ["option", "environment"])
def test_an_external_broker_is_used(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, way: str):
    with gnatswarm.Broker(token="s3/cret") as broker:
        url = broker.url.replace("//", "//s3%2Fcret@")
        monkeypatch.setenv("EXPECTED", broker.url)
        if way == "environment":
            monkeypatch.setenv("GNATSWARM_URL", url)
        result = run(pytester, EXTERNAL, *([f"--gnatswarm-url={url}"] if way == "option" else []))
        result.assert_outcomes(passed=4)
        assert broker.is_running


def test_an_external_broker_is_not_ours_to_change(pytester: pytest.Pytester):
    with gnatswarm.Broker() as broker:
        text = "def test_it(gnatswarm):\n    gnatswarm.restart()\n"
        result = run(pytester, text, f"--gnatswarm-url={broker.url}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*BrokerFailed: {broker.url} is not ours to restart: * `gnatswarm_fresh`*"])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://x:1", "--gnatswarm-url: not the URL of a NATS server: write nats://host:4222*"),
        ("nats://x:port", "--gnatswarm-url: not the URL of a NATS server: *"),
    ],
)
def test_a_url_that_is_none_is_one_clear_error(pytester: pytest.Pytester, url: str, said: str):
    result = run(pytester, "def test_it(gnatswarm):\n    pass\n", f"--gnatswarm-url={url}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_an_external_broker_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding, "EXTERNAL_DEADLINE_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        broker = embedding.ExternalBroker(f"nats://127.0.0.1:{taken.getsockname()[1]}")
        tries: list[object] = []
        dial = socket.create_connection

        def counted(*given, **more):
            tries.append(given)
            return dial(*given, **more)

        monkeypatch.setattr(socket, "create_connection", counted)
        for least, most in ((2, 5), (1, 1)):
            tries.clear()
            with pytest.raises(gnatswarm.BrokerFailed, match=r"no NATS server answers at nats://127\.0\.0\.1:"):
                broker.start()
            assert least <= len(tries) <= most


def test_a_broker_that_does_not_start_is_one_error(pytester: pytest.Pytester):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mark = f"@pytest.mark.gnatswarm_options(port={taken.getsockname()[1]})\n"
        result = run(pytester, f"import pytest\n\n{mark}def test_it(gnatswarm):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the port is in use by another process*"])
    result.stdout.no_fnmatch_line("*another exception*")


def test_what_was_not_awaited_fails_the_test(pytester: pytest.Pytester):
    text = """
import warnings

def test_sync(gnatswarm):
    gnatswarm.arestart()

async def test_async(gnatswarm):
    captured = await gnatswarm.acapture("a")
    captured.asettle()

def test_kept(gnatswarm):
    client = gnatswarm.connect()

def test_other_warnings_stay(gnatswarm):
    async def own():
        pass
    own()
    warnings.warn("a warning of its own")

async def test_awaited(gnatswarm):
    await gnatswarm.ashard_count()

def test_that_fails_anyway(gnatswarm):
    gnatswarm.arestart()
    assert 1 == 2
"""
    result = run(pytester, text, "-rf")
    result.assert_outcomes(failed=4, passed=2, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "arestart() was not awaited, and so did nothing: in a test without `async` call the method without the `a`",
            "asettle() was not awaited, and so did nothing",
            "connect() was not awaited, and so did nothing: only a test with `async` can await it",
        ]
    )
    result.stdout.fnmatch_lines(["*a warning of its own"])
    result.stdout.fnmatch_lines(["FAILED *test_that_fails_anyway - assert 1 == 2"])


def test_a_broker_that_ended_by_itself_is_one_clear_error(pytester: pytest.Pytester):
    text = publishing("""
import signal

def test_it(gnatswarm_fresh):
    os.kill(gnatswarm_fresh.pid, signal.SIGKILL)
    while gnatswarm_fresh.is_running:
        pass
    gnatswarm_fresh.kill_shard()
""")
    result = run(pytester, text)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*BrokerFailed: the broker has ended by itself:"])
    result.stdout.no_fnmatch_line("*another exception*")


def test_a_broker_within_the_process(pytester: pytest.Pytester):
    text = publishing("""
pytestmark = pytest.mark.gnatswarm_options(embedded=True)
leaked = []

@pytest.mark.parametrize("n", range(3))
def test_it(gnatswarm, n):
    captured = gnatswarm.capture("a")
    leaked.append(publish(gnatswarm, "a"))
    captured.settle()
    assert captured.subjects == ["a"]
    assert gnatswarm.connections == 2                    # and none of the test before
    if n == 1:
        gnatswarm.restart()
""")
    run(pytester, text).assert_outcomes(passed=3)


def test_several_brokers_of_a_tests_own(pytester: pytest.Pytester):
    text = publishing("""
def test_it(gnatswarm_factory):
    one, other = gnatswarm_factory(), gnatswarm_factory(server_name="other")
    captured = other.capture(">")
    publish(one, "a")
    publish(other, "b")
    captured.settle()
    assert captured.subjects == ["b"]
    one.stop()
""")
    run(pytester, text).assert_outcomes(passed=1)


def test_workers_of_xdist_have_a_broker_each(pytester: pytest.Pytester):
    text = publishing("""
import pathlib, time

@pytest.mark.parametrize("n", range(8))
def test_it(gnatswarm, n, worker_id):
    captured = gnatswarm.capture(">")
    publish(gnatswarm, *["same.subject"] * 50)
    captured.settle()
    assert captured.subjects == ["same.subject"] * 50
    pathlib.Path("pids").open("a").write(f"{worker_id} {gnatswarm.pid}\\n")
""")
    run(pytester, text, "-n", "2").assert_outcomes(passed=8)
    lines = {tuple(line.split()) for line in (pytester.path / "pids").read_text().splitlines()}
    assert len(lines) == len({worker for worker, _pid in lines}) == len({pid for _worker, pid in lines})
    assert wait_pids_gone([int(pid) for _worker, pid in lines], 30.0) == []


def test_a_run_that_is_killed_leaves_no_broker(pytester: pytest.Pytester):
    pytester.makepyfile(
        test_it="import os, signal\ndef test_it(gnatswarm):\n    print('PID', gnatswarm.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = forked(pytester, "-s")
    assert done.returncode == -9
    (line,) = [line for line in done.stdout.splitlines() if "PID" in line]
    assert wait_pids_gone([int(line.split("PID")[1])], 30.0) == []


def test_unittest_style_tests_can_have_it(pytester: pytest.Pytester):
    text = publishing("""
import unittest

class TestIt(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _broker(self, gnatswarm):
        self.broker = gnatswarm

    def test_it(self):
        publish(self.broker, "a")
""")
    run(pytester, text).assert_outcomes(passed=1)


def test_a_run_that_does_not_use_it_does_not_pay_for_it(pytester: pytest.Pytester):
    text = (
        "import sys\ndef test_it():\n    assert 'gnatswarm.pytest_plugin' in sys.modules\n"
        "    ours = ('gnatswarm.embedding', 'gnatswarm.broker', 'uvloop', 'msgspec', 'cryptography')\n"
        "    assert [name for name in ours if name in sys.modules] == []\n"
    )
    run_program(pytester, text, *WITHOUT_OTHERS, "-p", "no:asyncio").assert_outcomes(passed=1)


def test_its_fixtures_explain_themselves(pytester: pytest.Pytester):
    result = run(pytester, "", "--fixtures", "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.gnatswarm_options(*): options of the broker that this test gets*"])
    result = run(pytester, "", "--fixtures")
    for name in ("gnatswarm", "gnatswarm_fresh", "gnatswarm_factory", "gnatswarm_tls", "gnatswarm_session"):
        result.stdout.fnmatch_lines([f"{name}* -- *pytest_plugin.py:*"])
    result.stdout.no_fnmatch_line("*no docstring available*gnatswarm*")


def test_the_entry_point_is_this_plugin():
    from importlib.metadata import entry_points

    (found,) = entry_points(group="pytest11", name="gnatswarm")
    assert found.value == "gnatswarm.pytest_plugin"
    assert Path(found.load().__file__).name == "pytest_plugin.py"
    assert os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") is None


def test_chaos_is_the_same_for_a_seed_and_in_the_report(pytester: pytest.Pytester):
    text = """
    import socket

    def test_it(gnatswarm, gnatswarm_chaos):
        gnatswarm_chaos.drop("a", share=0.5)
        captured = gnatswarm.capture(">")
        host, port = gnatswarm_chaos.url.removeprefix("nats://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"CONNECT {}\\r\\n" + b"PUB a 1\\r\\nx\\r\\n" * 20 + b"PUB b 1\\r\\nx\\r\\nPING\\r\\n")
            answer = b""
            while b"PONG" not in answer:
                answer += client.recv(4096)
        captured.settle()
        assert captured.subjects[-1] == "b"
        assert len(captured) == 0
    """
    found = [run(pytester, text, "--gnatswarm-seed=7").stdout.str() for _ in range(2)]
    assert all("gnatswarm chaos (--gnatswarm-seed=7, call)" in one for one in found)
    lost = [re.findall(r"drop publish 'a' of connection 1", one) for one in found]
    assert lost[0] == lost[1] and 0 < len(lost[0]) < 20


def test_brokers_and_chaos_of_tests_that_are_over_are_not_kept(pytester: pytest.Pytester):
    """Pytest keeps each test until the end, with what is noted there: logs of 20,000 lines, lists of faults, loops."""
    text = """
    import gc
    import pytest
    from gnatswarm import Broker, BrokerProcess, Chaos

    @pytest.mark.parametrize("number", range(3))
    def test_it(gnatswarm_chaos, gnatswarm_factory, number):
        gnatswarm_factory(max_payload=1000 + number)

    def test_what_is_left():
        gc.collect()
        left = [type(one).__name__ for one in gc.get_objects() if type(one) in (Broker, BrokerProcess, Chaos)]
        assert len(left) == 1, left  # a broker that tests share
    """
    run(pytester, text).assert_outcomes(passed=4)
