"""Imports for the processes of a broker, without what none of them calls until somebody asks.

asyncio, uvloop, msgspec and others import modules of which they call a function here and there: `inspect` (and with it
Python's parser, disassembler and tokenizer), `ssl` and `hashlib` with OpenSSL, `json`, `decimal`, `subprocess`. That
was a fifth of the time until a shard runs, and 3.5 MB. Here a module takes their place that is read when a name is
first asked for that it has not got. It is the same object afterwards, so who imported it before sees the whole module.
What is imported already stays.

Who takes a class while it imports gets one that is of no use: to msgspec and orjson a UUID or Decimal is a stranger, to
orjson a dataclass, and `logging` has no style of formats but `%`. Processes of a broker have none of these.
Not for a program that embeds a broker, which decides itself what it imports. Imports nothing. Called by the keeper.
"""

from __future__ import annotations

import functools
import os
import sys
import types

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec

CO_COROUTINE = 0x80  # as of inspect
# Imported by asyncio, logging, msgspec, uuid or by us, and seldom called.
LATE = (
    *("tokenize", "textwrap", "locale", "hashlib", "ipaddress", "msgspec.inspect"),
    *("string", "uuid", "decimal", "dataclasses", "json"),
    "importlib.metadata",  # by websockets, which calls it before a release; with it come email, csv, zipfile, tempfile
)
ASYNCIO_LATE = ("asyncio.sslproto", "asyncio.staggered")


class _Late(types.ModuleType):
    """A module that is read when a name is asked for that it has not got."""

    __spec__: ModuleSpec

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by whoever looks through sys.modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _read(self)
        return getattr(self, name)


def _read(module: types.ModuleType) -> None:
    """Read this module, if it is late. What has been read of one that cannot be read stays."""
    if not isinstance(module, _Late):
        return
    loader = module.__spec__.loader
    assert loader is not None
    module.__class__ = types.ModuleType  # type: ignore[assignment]  # while it is read it is as incomplete as any
    try:
        loader.exec_module(module)
    except BaseException:  # without a descriptor or memory: the next one who wants it tries again
        module.__class__ = _Late
        raise


def is_late(name: str) -> bool:
    """Whether this module is waiting to be read."""
    return isinstance(sys.modules.get(name), _Late)


def late(name: str, present: Mapping[str, object] | None = None) -> None:
    """Have this module read when a name other than these is asked for; nothing, if it is imported or cannot be."""
    if name in sys.modules:
        return
    spec = _spec(name)
    if spec is None or spec.loader is None:
        return
    module = _Late(name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    module.__file__ = spec.origin
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    module.__dict__.update(present or {})
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).setdefault(own, module)  # as an import would have done


def import_loop(*, tls: bool) -> None:
    """Import uvloop, and so asyncio. Without `tls` its loops refuse an `ssl` argument, as long as the process lives.

    Our own TLS layers are not the loop's. Monitoring pages over HTTPS are.
    """
    _set_late()
    late("subprocess", {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3})
    if tls:
        import ssl  # noqa: F401  # which has everything, and is lent nothing
    else:
        late("ssl", {"SSL_ERROR_WANT_READ": 2, "SSL_ERROR_WANT_WRITE": 3, "SSL_ERROR_SYSCALL": 5})
    errors = ("SSLError", "SSLWantReadError", "SSLSyscallError", "SSLZeroReturnError", "CertificateError")
    of_ssl = _classes("SSLContext", "MemoryBIO", "create_default_context") | _classes(*errors, base=OSError)
    processes = _classes("SubprocessError", base=Exception)
    with _Lent("ssl", of_ssl), _Lent("string", _classes("Template", "Formatter")), _Lent("subprocess", processes):
        import asyncio
        import concurrent.futures  # noqa: F401

        for name in ASYNCIO_LATE:
            vars(asyncio).setdefault(name.rpartition(".")[2], sys.modules[name])  # as an import would have done
        threads = _function("concurrent.futures.thread", "ThreadPoolExecutor")  # uvloop only calls it
        with _Lent("concurrent.futures", {"ThreadPoolExecutor": threads}):
            import uvloop  # noqa: F401


def import_formats() -> None:
    """Import msgspec and orjson."""
    _set_late()
    if sys.version_info < (3, 12):
        _import_datetime()
    schema = "msgspec._json_schema"
    late(schema, {name: _function(schema, name) for name in ("schema", "schema_components")})
    without = "typing_extensions" not in sys.modules
    if without:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # msgspec does with typing's
    try:
        with (
            _Lent("uuid", _classes("UUID", "SafeUUID")),
            _Lent("decimal", _classes("Decimal")),
            _Lent("dataclasses", _classes("_FIELD")),
            _Lent("json", _classes("JSONDecodeError", base=ValueError)),
        ):
            import msgspec  # noqa: F401
            import orjson  # noqa: F401
    finally:
        if without:
            del sys.modules["typing_extensions"]


class _Lent:
    """While it is entered, a module has these for what it has not read yet: for who takes it and has no use for it."""

    def __init__(self, module: str, lent: Mapping[str, object]) -> None:
        self._names = vars(sys.modules[module])
        self._lent = {name: what for name, what in lent.items() if name not in self._names}

    def __enter__(self) -> None:
        self._names.update(self._lent)

    def __exit__(self, *_: object) -> None:
        for name, lent in self._lent.items():
            if self._names.get(name) is lent:  # the next who wants it reads the module
                del self._names[name]


def _classes(*names: str, base: type = object) -> dict[str, object]:
    """Classes of which nothing is an instance."""
    return {name: type(name, (base,), {"unknown": None}) for name in names}  # as of SafeUUID


def _set_late() -> None:
    late("importlib", {"__import__": __import__})
    late("inspect", {"isgenerator": _is_generator, "iscoroutinefunction": _is_coroutine_function})
    late("hmac", _names("_operator", {"_compare_digest": "compare_digest"}))
    late("platform", {"system": _system, "python_implementation": _python_implementation})
    for name in (*LATE, *ASYNCIO_LATE):
        late(name)


def _spec(name: str) -> ModuleSpec | None:
    """Where this module is, without an import of the package that it is in."""
    path: Sequence[str] | None = None
    package, _, _ = name.rpartition(".")
    if package:
        above = _spec(package)
        if above is None:
            return None
        path = above.submodule_search_locations
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _names(module: str, names: dict[str, str]) -> dict[str, object]:
    """These names of a module, under others; those that it has."""
    found = vars(__import__(module))
    return {name: found[own] for own, name in names.items() if own in found}


def _function(module: str, name: str) -> Callable[..., object]:
    """A function that imports its module when it is called."""

    def call(*args: object, **named: object) -> object:
        __import__(module)
        there = sys.modules[module]
        _read(there)
        return getattr(there, name)(*args, **named)

    return call


def _import_datetime() -> None:
    """Import `datetime` as Python 3.12 does: not its second, slow implementation, whose classes stay as garbage."""
    if "datetime" in sys.modules:
        return
    try:
        found = vars(__import__("_datetime"))
    except ImportError:
        return
    late("datetime", {name: value for name, value in found.items() if name == "__doc__" or name[0] != "_"})
    if is_late("datetime"):
        sys.modules["datetime"].__class__ = types.ModuleType  # it has all of it


def _is_generator(of: object) -> bool:
    """As `inspect.isgenerator`."""
    return isinstance(of, types.GeneratorType)


def _is_coroutine_function(of: Callable[..., object]) -> bool:
    """As `inspect.iscoroutinefunction`."""
    while isinstance(of, types.MethodType):
        of = of.__func__
    while isinstance(of, functools.partial):
        of = of.func
    return bool(getattr(getattr(of, "__code__", None), "co_flags", 0) & CO_COROUTINE)


def _system() -> str:
    """As `platform.system`."""
    return os.uname().sysname


def _python_implementation() -> str:
    """As `platform.python_implementation`; uvloop runs on no other."""
    return "CPython"
