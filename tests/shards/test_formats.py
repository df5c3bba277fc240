"""`gnatswarm upgrade` is refused where other processes could not talk to ours: it has to know every format."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec
import msgspec.inspect

from gnatswarm.broker import frozen
from gnatswarm.broker.fanout import Fanout
from gnatswarm.broker.limits import Limits
from gnatswarm.broker.mesh import Mesh
from gnatswarm.broker.options import Account, Options, Permissions
from gnatswarm.router.supervision import record, successor
from gnatswarm.shards import formats
from gnatswarm.shards.boundary import control, keeping
from gnatswarm.shards.clients import moved
from gnatswarm.shards.clients.rights import Rights
from gnatswarm.shards.links import links
from gnatswarm.shards.moving import move_channel

ROOT = Path(__file__).resolve().parents[2]
# Read from files, by whoever reads them: not between processes of one broker.
ON_DISK = {"RECORDS_VERSION"}


def test_every_format_between_processes_is_known() -> None:
    known = Path(formats.__file__).read_text()
    found = {
        name
        for folder in ("broker", "shards")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"(?m)^([A-Z_]+_VERSION) = \d+$", path.read_text())
    }
    assert len(found) > 5
    assert {name for name in found - ON_DISK if name not in known} == set()
    assert all(version > 0 for version in formats.versions().values())


# The structs of each format that has any.
STRUCTS: dict[str, tuple[object, ...]] = {
    "control messages": (control.ToShard, control.ToRouter),
    "links between shards": (links.Hello,),
    "ways for clients": (move_channel.Message,),
    "records of clients": (frozen.FrozenClient, frozen.OfferedClient, frozen.Offer, frozen.Shift, frozen.Counts),
    "who clients are": (moved.FrozenSession, moved.MovedClient),
    "keeper's packets": (keeping.ToKeeper, keeping.ToRouter, keeping.Succession),
    "router's record": (record.BrokerRecord, record.OptionsRecord),
}

# By name: the version, and what its structs were then.
WRITTEN_DOWN = {
    "control messages": (34, "348776f63b744be8"),
    "links between shards": (13, "5c6108bc345e9f53"),
    "ways for clients": (2, "973a78dc3a6da5ca"),
    "records of clients": (6, "a8804d7da80a0a5a"),
    "who clients are": (6, "de42e2c6f0da6e57"),
    "keeper's packets": (2, "b91b484aea99eb3b"),
    "router's record": (5, "22fa67c5b23327e1"),
}


def shape(kinds: tuple[object, ...]) -> str:
    """What distinguishes these structs, and all in them: fields, their order and types, and what is required."""
    structs: dict[str, object] = {}

    def described(one: object) -> object:
        if isinstance(one, msgspec.inspect.StructType | msgspec.inspect.EnumType):
            name = one.cls.__name__
            if name not in structs:
                structs[name] = ""  # (it may have fields of its own type)
                structs[name] = (
                    [member.value for member in one.cls]
                    if isinstance(one, msgspec.inspect.EnumType)
                    else [one.tag, one.array_like, one.forbid_unknown_fields]
                    + [[field.encode_name, field.required, described(field.type)] for field in one.fields]
                )
            return name
        if isinstance(one, msgspec.Struct):
            given = {name: getattr(one, name) for name in one.__struct_fields__}
            return [type(one).__name__, *([name, described(of)] for name, of in given.items() if of is not None)]
        if isinstance(one, tuple):
            return [described(part) for part in one]
        return repr(one)

    tops = [described(one) for one in msgspec.inspect.multi_type_info(kinds)]
    return hashlib.sha256(repr((tops, sorted(structs.items()))).encode()).hexdigest()[:16]


def test_structs_change_with_their_version_only() -> None:
    """Else a broker would be upgraded to a program that does not understand it.

    With another version of the format, or where the one before understands the change and is understood (a field of the
    router's record that has a default): write down what this shows.
    """
    versions = successor.own_formats(formats.versions())
    found = {name: (versions[name], shape(kinds)) for name, kinds in STRUCTS.items()}
    assert found == WRITTEN_DOWN


def test_all_versions_know_the_rights_of_a_client_by_the_same_digest() -> None:
    """A client whose rights have another digest at its next shard does not go there: at an upgrade, none would."""
    options = Options(limits=Limits(max_connections=1000), accounts=(Account("A", max_connections=7),))
    rights = Rights(options, Mesh(Fanout(), 0))
    some = Permissions(publish_allow=("a.>",), subscribe_deny=("b",))
    found = [rights.digest(wanted, name).hex() for wanted in (None, some) for name in "AB"]
    assert (moved.CLIENT_RECORD_VERSION, found) == (
        6,
        [
            "2c9e24a2653af0f8d386d428af8a0c11",
            "0df017f11203a0cef423f4941f9de0b6",
            "fa3f5650f51abe7605d04403a0e169ef",
            "4581eac6f3e0f8bd425dde5b662137df",
        ],
    )
