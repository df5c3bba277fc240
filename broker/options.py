"""Every option of the broker, typed, frozen and documented; parsed once by the router, passed whole to each shard.

One struct per section. Type, default, unit and meaning of an option stand on one line. Unknown keys are
errors. This module reads no file: `broker.conf` reads the server's relaxed syntax, `router.cli` the command line.
"""

from __future__ import annotations

import msgspec

from broker.limits import Limits


class Logging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where log lines go and how much they say."""

    file: str = ""  # path; "": standard error
    size_limit_bytes: int = 0  # rotate past this many bytes; 0: never
    format: str = "text"  # "text": the server's own lines; "json": one JSON object per line
    logtime: bool = True  # timestamps on every line
    debug: bool = False  # -D: connections, links, decisions
    trace: bool = False  # -V: every operation of every client; slow


class Swarm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shards behind one address; ours alone, nats-server has no such section."""

    shards: int = 0  # 1..64; 0: the number of usable cores (affinity and cgroup respected)
    accept: str = "reuseport"  # "reuseport": one kernel-balanced listener per shard; "handoff": the router places
    link_dir: str = ""  # private directory of the link sockets; "": a fresh one, mode 0700
    prefer_local: bool = False  # queue groups: members on the publisher's shard first


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration of one broker."""

    host: str = ""  # address to listen on; "" or "0.0.0.0": every address, IPv6 included where there is
    port: int = 4222  # clients' TCP port; -1: any free one
    server_name: str = ""  # shown in INFO and on the monitoring pages; "": the server id
    limits: Limits = Limits()
    logging: Logging = Logging()
    swarm: Swarm = Swarm()
    pid_file: str = ""  # written at start, removed at exit
    ports_file_dir: str = ""  # a file <program>_<pid>.ports with the ports in use is written here
    http_host: str = ""  # monitoring address; "": same as host
    http_port: int = 0  # monitoring port; 0: off, -1: any free one
    client_advertise: str = ""  # host[:port] to show in connect_urls instead of our own
    headers: bool = True  # offer message headers (HPUB, HMSG)
    auth_token: str = ""  # token every client must give; "": none
    auth_user: str = ""  # with auth_password: the one user; "": none
    auth_password: str = ""
