"""What keeper and shards import late is what everybody else imports, and nothing that a start needs."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gnatswarm.shards import lean_imports

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What would come with what is late.
HEAVY = {
    *("ast", "_ast", "dis", "_hashlib", "_ssl", "typing_extensions"),
    *("json.decoder", "_decimal", "_uuid", "copy", "_posixsubprocess", "concurrent.futures.thread"),
}


def run(code: str) -> str:
    """What a fresh Python prints."""
    result = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_until_a_shard_can_be_forked_nothing_is_read_that_is_late() -> None:
    said = run(
        "import sys\n"
        "from gnatswarm import keeper\n"
        "from gnatswarm.shards.lean_imports import is_late\n"
        "keeper._share(); keeper._prepare()\n"
        "print(*(name for name in sys.modules if is_late(name)))\n"
        "print(*sys.modules)\n"
    )
    late, there = (set(line.split()) for line in said.splitlines())
    assert late >= {
        *("inspect", "ssl", "hashlib", "hmac", "tokenize", "textwrap", "msgspec.inspect", "msgspec._json_schema"),
        *("platform", "uuid", "decimal", "dataclasses", "json", "string", "subprocess", "asyncio.sslproto"),
    }
    assert there & HEAVY == set()


def test_a_keeper_that_knows_no_configuration_has_a_loop_with_tls() -> None:
    said = run(
        "import sys\n"
        "from gnatswarm import keeper\n"
        "from gnatswarm.shards.lean_imports import is_late\n"
        "keeper._prepare()\n"
        "import ssl, asyncio, uvloop\n"
        "async def main():\n"
        "    server = await asyncio.get_running_loop().create_server(\n"
        "        asyncio.Protocol, '127.0.0.1', 0, ssl=ssl.create_default_context())\n"
        "    server.close()\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
        "    runner.run(main())\n"
        "print(is_late('ssl'), is_late('inspect'))\n"
    )
    assert said.split() == ["False", "True"]


def test_a_loop_without_tls_refuses_it_and_everything_else_has_the_real_ssl() -> None:
    said = run(
        "from gnatswarm import keeper\n"
        "keeper._share()\n"
        "from gnatswarm.shards.lean_imports import is_late\n"
        "print(is_late('ssl'))\n"
        "from ssl import MemoryBIO, SSLError, SSLWantReadError\n"
        "import _ssl, ssl, asyncio, uvloop\n"
        "from gnatswarm.shards.sockets import layered\n"
        "print(SSLError is _ssl.SSLError, SSLWantReadError is _ssl.SSLWantReadError, MemoryBIO is _ssl.MemoryBIO)\n"
        "print(issubclass(ssl.SSLContext, _ssl._SSLContext), asyncio.base_events.ssl is ssl, is_late('ssl'))\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.get_running_loop().create_server(\n"
        "            asyncio.Protocol, '127.0.0.1', 0, ssl=ssl.create_default_context())\n"
        "    except TypeError:\n"
        "        print('refused')\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
        "    runner.run(main())\n"
    )
    assert said.splitlines() == ["True", "True True True", "True True False", "refused"]


def test_a_late_module_is_read_once_and_whole_and_stays_the_same_object() -> None:
    said = run(
        "import sys\n"
        "from gnatswarm.shards.lean_imports import is_late, late\n"
        "late('textwrap')\n"
        "import textwrap as early\n"
        "print(is_late('textwrap'), hasattr(early, '__path__'), is_late('textwrap'), early.__file__.endswith('.py'))\n"
        "late('textwrap', {'indent': None})\n"
        "print(is_late('textwrap'), 'indent' in vars(early))\n"
        "print(repr(early.indent('a', '>')), is_late('textwrap'))\n"
        "import textwrap\n"
        "print(textwrap is early, sys.modules['textwrap'] is early, type(early).__name__)\n"
        "try:\n"
        "    early.nothing\n"
        "except AttributeError:\n"
        "    print('no such name')\n"
        "late('there_is_no_such_module')\n"
        "print('there_is_no_such_module' in sys.modules)\n"
    )
    assert said.splitlines() == [
        "True False True True",
        "True False",
        "'>a' False",
        "True True module",
        "no such name",
        "False",
    ]


def test_datetime_and_msgspec_are_as_those_of_others() -> None:
    code = (
        "import datetime, msgspec, pickle, typing\n"
        "from msgspec import inspect, json\n"
        "class One(msgspec.Struct):\n"
        "    a: int | None\n"
        "    b: typing.Annotated[str, msgspec.Meta(max_length=3)]\n"
        "    c: dict[str, list['One']] = {}\n"
        "    at: datetime.datetime | None = None\n"
        'print(json.decode(b\'{"a":1,"b":"x","at":"2026-11-24T00:00:00Z"}\', type=One))\n'
        "print(inspect.type_info(One), msgspec.json.schema(One))\n"
        "there = datetime.datetime(2026, 11, 24, 3, 4, tzinfo=datetime.UTC)\n"
        "print(pickle.loads(pickle.dumps(there)), there.strftime('%A'), datetime.datetime.strptime('2026', '%Y'))\n"
        "print(sorted(name for name in vars(datetime) if name[0] != '_' and name != 'sys'), datetime.__doc__)\n"
        "import typing_extensions\n"
        "print(typing_extensions.__name__)\n"
    )
    lean = (
        "from gnatswarm.shards import lean_imports\n"
        "lean_imports.import_loop(tls=False)\n"
        "lean_imports.import_formats()\n"
    )
    assert run(lean + code) == run(code)


async def _coroutine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


class _Some:
    async def asked(self) -> None: ...

    def told(self) -> None: ...


@pytest.mark.parametrize(
    "of",
    [
        *(_coroutine, _generator, _generator(), _Some().asked, _Some().told, _Some, functools.partial(_coroutine)),
        *(functools.partial(_Some().asked), functools.partial(functools.partial(print)), print, os.getpid, 1, None),
    ],
    ids=str.split(
        "coroutine generator begun method other-method class partial partial-method partials print getpid number none"
    ),
)
def test_what_is_there_before_inspect_is_read_answers_as_inspect(of: object) -> None:
    assert lean_imports._is_generator(of) == inspect.isgenerator(of)
    assert lean_imports._is_coroutine_function(of) == inspect.iscoroutinefunction(of)  # type: ignore[arg-type]


def test_what_is_there_before_the_rest_is_read_is_the_same() -> None:
    said = run(
        "import os, platform, ssl\n"
        "print(int(ssl.SSL_ERROR_WANT_READ), int(ssl.SSL_ERROR_WANT_WRITE), int(ssl.SSL_ERROR_SYSCALL))\n"
        "print(platform.system() == os.uname().sysname, platform.python_implementation())\n"
        "import subprocess\n"
        "print(subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL)\n"
    )
    assert said.splitlines() == ["2 3 5", "True CPython", "-1 -2 -3"]


def test_who_took_a_class_of_a_late_module_goes_on_and_others_get_the_real_one() -> None:
    said = run(
        "import sys\n"
        "from gnatswarm import keeper\n"
        "keeper._share(); keeper._prepare()\n"
        "import asyncio, concurrent.futures, dataclasses, decimal, json, orjson, subprocess, uuid, uvloop\n"
        "try:\n"
        "    orjson.loads(b'{')\n"
        "except orjson.JSONDecodeError as error:\n"
        "    print(isinstance(error, ValueError))\n"
        "print(orjson.dumps({'a': [1, 'b', None, True, 0.5]}).decode())\n"
        "print(json.loads('[1]'), json.JSONDecodeError is json.decoder.JSONDecodeError)\n"
        "print(decimal.Decimal('0.1') * 3, uuid.UUID(int=1).version)\n"
        "print(dataclasses.replace(dataclasses.make_dataclass('A', ['b'])(1), b=2).b)\n"
        "print(asyncio.sslproto.SSLProtocol.__name__, asyncio.staggered.staggered_race.__name__)\n"
        "async def main():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    print(await loop.run_in_executor(None, len, 'four'), loop.__class__.__module__)\n"
        "    ran = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)', stdout=subprocess.PIPE)\n"
        "    print(*await ran.communicate(), ran.returncode)\n"
        "    with concurrent.futures.ThreadPoolExecutor(1) as threads:\n"
        "        print(isinstance(threads, concurrent.futures.Executor), threads.submit(len, 'abc').result())\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
        "    runner.run(main())\n"
    )
    assert said.splitlines() == [
        "True",
        '{"a":[1,"b",null,true,0.5]}',
        "[1] True",
        "0.3 None",
        "2",
        "SSLProtocol staggered_race",
        "4 uvloop",
        "b'1\\n' None 0",
        "True 3",
    ]


def test_a_shard_with_websockets_reads_nothing_that_they_never_call_and_others_have_it() -> None:
    said = run(
        "import sys\n"
        "from gnatswarm import keeper\n"
        "keeper._share(); keeper._prepare()\n"
        "from gnatswarm.shards.lean_imports import is_late\n"
        "import gnatswarm.shards.sockets.frames, gnatswarm.shards.sockets.dialled_frames\n"
        "print(is_late('importlib.metadata'), *{'csv', 'email.message', 'tempfile', 'zipfile'} & set(sys.modules))\n"
        "import importlib\n"
        "print(is_late('importlib'), importlib.__import__('sys') is sys)\n"
        "print(importlib.metadata.version('websockets').split('.')[0].isdigit(), is_late('importlib.metadata'))\n"
        "from importlib import resources, util\n"
        "print(importlib.import_module('csv').__name__, importlib.util is util, importlib.resources is resources)\n"
    )
    assert said.splitlines() == ["True", "True True", "True False", "csv True True"]


def test_digests_are_compared_before_openssl_is_read() -> None:
    said = run(
        "from gnatswarm.shards import lean_imports\n"
        "lean_imports.import_loop(tls=False)\n"
        "import hmac\n"
        "print(hmac.compare_digest(b'ab', b'ab'), hmac.compare_digest(b'ab', b'ac'), lean_imports.is_late('hmac'))\n"
        "print(hmac.new(b'k', b'text', 'sha256').hexdigest()[:8], lean_imports.is_late('hmac'))\n"
    )
    first, second = said.splitlines()
    assert first == "True False True"
    assert second.endswith(" False")


def test_a_late_module_that_could_not_be_read_is_read_by_the_next_who_wants_it() -> None:
    """Clients may have all descriptors. What was half read stayed so, as long as the process lived."""
    said = run(
        "import resource, sys\n"
        "from gnatswarm.shards import lean_imports\n"
        "lean_imports.late('hashlib')\n"
        "import hashlib\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        hashlib.sha256\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "print(hashlib.sha256().hexdigest()[:4], lean_imports.is_late('hashlib'))\n"
    )
    assert said.splitlines() == ["Too many open files"] * 2 + ["e3b0 False"]
