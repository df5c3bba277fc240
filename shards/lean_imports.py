"""Imports for the processes of a broker, without what none of them calls until somebody asks.

asyncio, uvloop and msgspec import modules of which they call a function here and there: `inspect` (and with it Python's
parser, disassembler and tokenizer), `ssl` and `hashlib` with OpenSSL, `locale`. That was a sixth of the time until a
shard runs, and 2.5 MB. Here a module takes their place that is read when a name is first asked for that it has not got.
It is the same object afterwards, so who imported it before sees the whole module. What is imported already stays.
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
LATE = ("tokenize", "textwrap", "locale", "hashlib", "ipaddress", "msgspec.inspect", "msgspec._json_schema")


class _Late(types.ModuleType):
    """A module that is read when a name is asked for that it has not got."""

    __spec__: ModuleSpec

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by whoever looks through sys.modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        loader = self.__spec__.loader
        assert loader is not None
        self.__class__ = types.ModuleType  # type: ignore[assignment]  # while it is read it is as incomplete as any
        loader.exec_module(self)
        return getattr(self, name)


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
    module.__dict__.update(present or {})
    sys.modules[name] = module


def import_loop(*, tls: bool) -> None:
    """Import uvloop, and so asyncio. Without `tls` its loops refuse an `ssl` argument, as long as the process lives.

    Our own TLS layers are not the loop's. Monitoring pages over HTTPS are.
    """
    _set_late()
    ssl = _without_ssl() if not tls else {}
    try:
        import uvloop  # noqa: F401
    finally:
        for name in ssl:
            del sys.modules["ssl"].__dict__[name]  # the next who wants it reads the module


def import_formats() -> None:
    """Import msgspec."""
    _set_late()
    if sys.version_info < (3, 12):
        _import_datetime()
    without = "typing_extensions" not in sys.modules
    if without:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # msgspec does with typing's
    try:
        import msgspec  # noqa: F401
    finally:
        if without:
            del sys.modules["typing_extensions"]


def _set_late() -> None:
    late("inspect", {"isgenerator": _is_generator, "iscoroutinefunction": _is_coroutine_function})
    late("hmac", _names("_operator", {"_compare_digest": "compare_digest"}))
    late("platform", {"system": _system})
    for name in LATE:
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


def _without_ssl() -> dict[str, object]:
    """Put a late `ssl` there with what uvloop and asyncio take of it when they are imported; these names."""
    if "ssl" in sys.modules:
        return {}
    classes = ("SSLContext", "MemoryBIO", "create_default_context")
    errors = ("SSLError", "SSLWantReadError", "SSLSyscallError", "SSLZeroReturnError", "CertificateError")
    present: dict[str, object] = {name: type(name, (), {}) for name in classes}
    present.update({name: type(name, (OSError,), {}) for name in errors})
    present.update(SSL_ERROR_WANT_READ=2, SSL_ERROR_WANT_WRITE=3, SSL_ERROR_SYSCALL=5)
    late("ssl", present)
    return present if is_late("ssl") else {}


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
