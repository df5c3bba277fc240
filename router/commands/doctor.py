"""`gnatswarm doctor`: checks whether this machine and a configuration suit a broker, and says what to do if not.

Each check is one function that examines one thing and returns one Finding. It leaves no processes or files behind, and
sends nothing to running brokers. FAIL: a broker would not start, or not work. WARN: it works, but slower or without a
feature. Called by the command line only.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import msgspec

from gnatswarm.broker.options import Options
from gnatswarm.router.commands.first_screen import is_compiled
from gnatswarm.router.config.conf_tree import ConfigError
from gnatswarm.router.config.cores import usable_cores
from gnatswarm.router.config.flags import CommandLine
from gnatswarm.router.config.options_build import build
from gnatswarm.router.config.stats_place import default_directory
from gnatswarm.router.listening import steering
from gnatswarm.router.listening.listeners import BACKLOG, ListenError, Listeners, address_text, set_in
from gnatswarm.router.listening.monitor_socket import monitoring_host
from gnatswarm.router.supervision.descriptors import clients_wanted
from gnatswarm.shards.boundary import linkdir

OK, WARN, FAIL = "OK", "WARN", "FAIL"

# Enough for a broker of 62 shards: two sockets and a pipe for each, monitoring, the log, and some clients.
LEAST_OPEN_FILES = 512
JAVA_DEADLINE_S = 20.0
# Each extra: what it is for, and modules that it installs.
_EXTRAS = {
    "spark": ("`report`, `ingest`, `compact`, `place` and `suggest-permissions`", ("pyspark", "matplotlib")),
    "top": ("`top`", ("rich",)),
    "loadtest": ("locust users, and the plots of `bench --compare`", ("locust", "matplotlib")),
}
_RUNTIME = ("uvloop", "msgspec", "orjson", "h11", "websockets", "zstandard", "bcrypt", "PyNaCl")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    result: str  # OK, WARN or FAIL
    found: str
    advice: str = ""  # what to do; "": nothing


def run(line: CommandLine, *, as_json: bool, program: str = "gnatswarm") -> int:
    """Print a line for each check; returns 1 if one of them is a FAIL, else 0."""
    findings = list(examine(line))
    failed = any(finding.result == FAIL for finding in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [msgspec.structs.asdict(f) for f in findings]}, indent=2))
        return int(failed)
    for finding in findings:
        first, *more = finding.found.splitlines()
        print(f"{finding.result:<5} {finding.check:<14} {first}")
        for text in [*more, *([f"→ {finding.advice}"] if finding.advice else [])]:
            print(f"{'':20} {text}")
    counts = {result: sum(finding.result == result for finding in findings) for result in (FAIL, WARN)}
    well = "nothing stands in the way" if not failed else f"{program} will not run well here"
    print(f"\n{len(findings)} checks, {counts[FAIL]} failed, {counts[WARN]} warnings: {well}")
    return int(failed)


def examine(line: CommandLine) -> Iterator[Finding]:
    """Every check, in the order in which a starting broker depends on it."""
    yield from (_version(), _python(), _packages(), _extras(), _compiler(), _kernel(), _steering(), _cores())
    finding, options = _configuration(line)
    yield finding
    yield _open_files(options)
    for check, host, port, set_by in _ports(options):
        yield _port(check, host, port, set_by)
    for look in (_runtime_directory, _statistics, _backlog, _congestion, _java, _running):
        yield look(options)


# ---- the program


def _version() -> Finding:
    from gnatswarm.broker.version import OWN_VERSION, SERVER_VERSIONS

    if not is_compiled():
        return Finding("version", FAIL, f"gnatswarm {OWN_VERSION}, not compiled", "in a source tree: make build")
    return Finding(
        "version",
        OK,
        f"gnatswarm {OWN_VERSION}, compiled; speaks like nats-server {' or '.join(SERVER_VERSIONS.values())}",
    )


def _python() -> Finding:
    return Finding(
        "python", OK, f"Python {platform.python_version()} at {sys.executable}"
    )  # older ones do not get here


def _packages() -> Finding:
    versions, missing = [], []
    for name in _RUNTIME:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        advice = f"{sys.executable} -m pip install {' '.join(missing)}"
        return Finding("packages", FAIL, f"missing: {', '.join(missing)}", advice)
    return Finding("packages", OK, ", ".join(versions))


def _extras() -> Finding:
    """Lists the extras that are not installed. This is never a problem, because a broker needs none of them."""
    missing = {
        extra: purpose
        for extra, (purpose, modules) in _EXTRAS.items()
        if any(importlib.util.find_spec(module) is None for module in modules)
    }
    if not missing:
        return Finding("extras", OK, f"all there: {', '.join(_EXTRAS)}")
    lines = ["a broker needs none; not installed:", *(f"{extra}, for {purpose}" for extra, purpose in missing.items())]
    return Finding("extras", OK, "\n".join(lines), f"pip install 'gnatswarm[{','.join(missing)}]'")


def _compiler() -> Finding:
    """Only a build from sources needs a compiler."""
    import sysconfig

    command = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    found = shutil.which(command.split()[0])
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    lacks = [] if found else [f"no C compiler ({command.split()[0]})"]
    if not os.path.exists(header):
        lacks.append("no Python.h")
    if lacks:
        advice = "nothing, unless you build from sources: then gcc and python3-dev (Debian), python3-devel (Fedora)"
        return Finding("compiler", OK if is_compiled() else FAIL, ", ".join(lacks), advice)
    return Finding("compiler", OK, str(found))


# ---- the kernel


def _kernel() -> Finding:
    system = f"{platform.system()} {platform.release()}"
    lacks = [name for name in ("memfd_create", "pidfd_open", "sched_getaffinity") if not hasattr(os, name)]
    if platform.system() != "Linux" or lacks:
        return Finding(
            "kernel", FAIL, f"{system}, without {', '.join(lacks) or 'epoll'}", "run it on Linux 5.4 or newer"
        )
    try:
        os.close(os.memfd_create("gnatswarm"))
        os.close(os.pidfd_open(os.getpid()))
        with socket.socket(socket.AF_UNIX):
            pass
    except OSError as error:
        advice = "a sandbox forbids it: allow memfd_create, pidfd_open and sockets of AF_UNIX"
        return Finding("kernel", FAIL, f"{system}: {error.strerror}", advice)
    return Finding("kernel", OK, f"{system}: memfd, pidfd, Unix sockets")


def _steering() -> Finding:
    try:
        listeners = Listeners("127.0.0.1", -1, 2)
    except ListenError as error:
        return Finding("steering", FAIL, str(error), "connections cannot be spread over shards without SO_REUSEPORT")
    try:
        steered = steering.Steering(listeners.sockets)
        steered.choose([1])
        if steered.error is not None:
            found = f"SO_REUSEPORT works, choosing among its listeners does not ({steered.error.strerror})"
            return Finding("steering", WARN, found, "the kernel spreads by hash; or use: --accept handoff")
    finally:
        listeners.close()
    return Finding("steering", OK, "SO_REUSEPORT, and a BPF program to choose among its listeners")


def _cores() -> Finding:
    cores, there = usable_cores(), os.cpu_count() or 1
    found = f"{cores} usable of {there}: that many shards by default"
    return Finding("cores", OK, found if cores < there else f"{cores} usable: that many shards by default")


# ---- the configuration, and what it needs


def _configuration(line: CommandLine) -> tuple[Finding, Options]:
    name = line.config_file or "defaults and flags"
    try:
        built = build(line)
    except ConfigError as error:
        from gnatswarm.router.config.excerpt import with_lines

        return Finding("configuration", FAIL, with_lines(error), "what follows was looked at with defaults"), Options()
    notices = built.options.notices
    if notices:
        return Finding("configuration", WARN, "\n".join([name, *notices])), built.options
    return Finding("configuration", OK, f"{name}: valid"), built.options


def _open_files(options: Options) -> Finding:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", OK, "no limit")
    wanted, shown = clients_wanted(options)
    advice = f"raise it: LimitNOFILE={wanted + 1024} in a unit file, `ulimit -n`, or /etc/security/limits.conf"
    if hard < LEAST_OPEN_FILES:
        return Finding("open files", FAIL, f"at most {hard} for each process", advice)
    found = f"at most {hard} for each process, and each shard needs one for each of its clients"
    if hard < wanted + 256:
        return Finding("open files", WARN, f"{found}; max_connections is {shown}", advice)
    return Finding("open files", OK, found)


def _ports(options: Options) -> Iterator[tuple[str, str, int, tuple[str, str]]]:
    """Of each port the check, host and port, and the options that set them."""
    yield "port", options.host, options.port, ("-a", "-p")
    if options.websocket.port:
        yield "port websocket", options.websocket.host, options.websocket.port, set_in("websocket")
    for kind, (host, port) in options.server_ports.items():
        yield f"port {kind}", host, port, set_in(kind)
    monitoring = options.https_port or options.http_port
    if monitoring:
        port_option = "-ms" if options.https_port else "-m"
        yield "port pages", monitoring_host(options), monitoring, ("-a", port_option)


def _port(check: str, host: str, port: int, set_by: tuple[str, str] = ("-a", "-p")) -> Finding:
    if port < 0:
        return Finding(check, OK, "any free one")
    try:
        Listeners(host, port, 1, wait_s=0.0, set_by=set_by).close()
    except ListenError as error:
        for owner in _owners():
            if port in listening_ports(owner.pid):
                found = f"{port} is served by your running broker, process {owner.pid}; a second one needs another port"
                return Finding(check, OK, found)
        return Finding(check, FAIL, str(error))
    return Finding(check, OK, f"{address_text(host, port)} is free")


def _runtime_directory(options: Options) -> Finding:
    """The directory for the sockets between a broker's processes; tested by making one as a broker does."""
    base = options.sharding.link_dir or linkdir.default_base()
    try:
        linkdir.LinkDirectory(base, linkdir.Owner(os.getpid(), 0)).remove()
    except linkdir.LinkDirectoryError as error:
        return Finding("sockets", FAIL, str(error), "set XDG_RUNTIME_DIR or link_dir to a directory of this user")
    return Finding("sockets", OK, f"private directories under {base}")


def _statistics(options: Options) -> Finding:
    stats = options.stats
    if not stats.enabled:
        return Finding("statistics", OK, "off")
    directory = os.path.abspath(stats.dir) if stats.dir else default_directory(options.port)
    if directory is None or (options.port < 0 and not stats.dir):
        return Finding("statistics", OK, "off: no directory is named", "name one with --stats-dir to have them")
    there = directory
    while not os.path.exists(there):
        there = os.path.dirname(there)
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        advice = "name another with --stats-dir, or turn them off with --no-stats"
        return Finding("statistics", WARN, f"cannot write to {there}: {error.strerror}", advice)
    found = f"{directory}, {free / 1e9:.1f} GB free"
    if stats.max_bytes and free < stats.max_bytes:
        advice = "set stats { max_size: … } to what there is room for"
        return Finding("statistics", WARN, f"{found}, and they may take {stats.max_bytes / 1e9:.1f} GB", advice)
    return Finding("statistics", OK, found)


# ---- limits of the kernel that a busy broker can reach


def _backlog(_options: Options) -> Finding:
    queue = _number("/proc/sys/net/core/somaxconn")
    if queue is None:
        return Finding("somaxconn", OK, "not readable here")
    if queue < BACKLOG:
        advice = f"sysctl net.core.somaxconn={BACKLOG} (deploy/sysctl)"
        found = f"{queue} connections may wait for each shard, not {BACKLOG}: bursts of clients are delayed"
        return Finding("somaxconn", WARN, found, advice)
    return Finding("somaxconn", OK, f"{queue} connections may wait for each shard")


def _congestion(_options: Options) -> Finding:
    control = _text("/proc/sys/net/ipv4/tcp_congestion_control")
    if control == "bbr":
        found = "bbr, which delays small writes also on loopback: rates measured on this host are too low"
        return Finding("congestion", WARN, found, "for clients nearby: sysctl net.ipv4.tcp_congestion_control=cubic")
    return Finding("congestion", OK, control or "not readable here")


def _java(_options: Options) -> Finding:
    """For the extra `spark`. Runs in a separate process, because the broker imports nothing of Spark."""
    if importlib.util.find_spec("pyspark") is None:
        return Finding("spark", OK, "not installed")  # `extras` says how, and what for
    code = "import os; from gnatswarm.spark.session import find_java; print(find_java(os.environ)[1])"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=JAVA_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("spark", WARN, f"java did not say its version within {JAVA_DEADLINE_S:.0f} s")
    version = importlib.metadata.version("pyspark")
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]  # ("" of one that was killed)
        why = last.partition("NoJava: ")[2] or "java cannot be run"
        return Finding("spark", WARN, f"pyspark {version}, but {why}", "pip install 'gnatswarm[spark]' brings a Java")
    return Finding("spark", OK, f"pyspark {version}, {done.stdout.strip()}")


def _running(_options: Options) -> Finding:
    text = ", ".join(f"process {owner.pid} on port {owner.port}" for owner in _owners())
    return Finding("running", OK, text or "no broker of this user")


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which this process of ours listens, from /proc: this also finds a broker that hangs."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # ended meanwhile, or another user's
        return set()
    targets = []
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    inodes = {target[len("socket:[") : -1] for target in targets if target.startswith("socket:[")}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in _text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            fields = line.split()  # local_address is the second one, st the fourth (0A: LISTEN), inode the tenth
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _owners() -> list[linkdir.Owner]:
    return [owner for base in linkdir.bases() for _path, owner in linkdir.live(base)]


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
