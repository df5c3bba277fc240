"""The command `gnatswarm`, also under the name `nats-server`: arguments in, exit code out.

Decides which of the program's few jobs is asked for (serve, test a configuration, send a signal, talk to a running
broker, print) and imports only what that job needs: `-v` and `-h` cost little more than the interpreter.
"""

from __future__ import annotations

import os
import sys

from router.flags import BadCommandLine, CommandLine, nearest, parse

# Named as type checkers want it, without the import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from broker.options import Options


COMMANDS = ("help", "version", "status", "health", "scale", "top", "doctor", "bench", "report", "ingest")


def main(argv: list[str] | None = None, *, program: str = "") -> int:
    """Run with these arguments (default: the process's own) under this name (default: the one called by)."""
    program = program or _called_as()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(parse(arguments), program)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
        return code
    except BadCommandLine as bad:
        return _fail(program, f"{bad}\nrun {program} -h to see every flag")
    except BrokenPipeError:  # as with `| head`: nobody wants the rest, Python's own last flush included
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(line: CommandLine, program: str) -> int:
    command = line.words[0].lower() if line.words else ""
    if line.asks("h") or command == "help":
        from router.help import help_text

        print(help_text(program), end="")
        return 0
    if line.asks("help_tls"):
        from router.help import tls_help_text

        print(tls_help_text(program), end="")
        return 0
    if line.asks("v") or command == "version":
        print(_version_line(program))
        return 0
    if line.values.get("sl"):
        from router.signals import SignalError, send

        try:
            send(str(line.values["sl"]), program)
        except SignalError as error:
            return _fail(program, str(error))
        return 0
    if command in ("scale", "status", "health"):
        return _operate(line, program)
    if command == "top":
        return _top(line)
    if command == "doctor":
        return _doctor(line, program)
    if command in ("report", "ingest", "compact"):
        return _spark(command, line.words[1:], program)
    if command == "bench":
        # A program of its own: a load generator shares nothing with the broker.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "loadtest.bench", *line.words[1:]])
    if command:
        hint = nearest(command, COMMANDS) or f" (there are {', '.join(COMMANDS)})"
        raise BadCommandLine(f'unrecognized command: "{line.words[0]}"{hint}')
    return _test(line, program) if line.asks("t") else _serve(line, program)


def _operate(line: CommandLine, program: str) -> int:
    from router.operator_arguments import operator_arguments

    asked = operator_arguments(line, program)
    from router import operator_commands
    from router.signals import SignalError, find_pid

    try:
        pid = find_pid(asked.pid, program) if asked.pid else None
    except SignalError as error:
        return _fail(program, str(error))
    if asked.command == "scale":
        return operator_commands.scale(asked.shards, pid=pid, port=asked.port)
    if asked.command == "health":
        return operator_commands.health(pid=pid, port=asked.port)
    return operator_commands.status(pid=pid, port=asked.port, as_json=asked.as_json)


def _spark(job: str, arguments: list[str], program: str) -> int:
    """A program of its own: the broker does without Spark, and Spark without the broker."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        return _fail(program, f"{job} needs Spark: pip install 'gnatswarm[spark]' (some 400 MB, Java included)")
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"spark.jobs.{job}", *arguments])


def _top(line: CommandLine) -> int:
    """The monitoring pages at an address, at -m's port, or at the usual one of this host."""
    words = line.words[1:]
    url = words.pop(0) if words and not words[0].startswith("-") else ""
    behind = parse(words)
    if behind.words:
        raise BadCommandLine(f'unexpected "{behind.words[0]}" after top')
    port = (line.values | behind.values).get("m", 8222)
    from router.top import run

    return run(url or f"http://127.0.0.1:{port}")


def _doctor(line: CommandLine, program: str) -> int:
    behind = parse(line.words[1:])
    if behind.words:
        raise BadCommandLine(f'unexpected "{behind.words[0]}" after doctor')
    from router.doctor import run

    both = CommandLine(line.values | behind.values, line.spelled | behind.spelled, [])
    return run(both, as_json=both.asks("json"), program=program)


def _test(line: CommandLine, program: str) -> int:
    from broker.conf_tree import ConfigError
    from router.options_build import build

    if not line.config_file:
        return _fail(program, "must specify [-c, --config] option to check configuration file syntax")
    try:
        built = build(line)
    except ConfigError as error:
        return _fail(program, str(error))
    if built.warnings:  # a start would take it; the real server's test fails all the same
        return _fail(program, "\n".join(built.warnings))
    for notice in built.options.notices:
        print(f"{program}: {notice}", file=sys.stderr)
    print(f"{program}: configuration file {line.config_file} is valid", file=sys.stderr)
    return 0


def _serve(line: CommandLine, program: str) -> int:
    # What a service manager says to this process is for it alone, and comes before anything is started.
    inherited, notifier = None, None
    if "LISTEN_FDS" in os.environ or "NOTIFY_SOCKET" in os.environ:
        from router.inherited import Inherited
        from router.listeners import ListenError
        from router.notify import Notifier

        notifier = Notifier.take(os.environ, os.getpid())
        try:
            inherited = Inherited.take(os.environ, os.getpid())
        except ListenError as error:
            return _fail(program, str(error))
    # What shards are forked from imports while we read the configuration.
    from router.zygote import prepare

    prepare()
    from broker.conf_tree import ConfigError
    from router.listeners import ListenError
    from router.options_build import build

    def read() -> Options:
        options = build(line).options
        return options if inherited is None else inherited.adapt(options)

    try:
        options = read()
    except (ConfigError, ListenError) as error:
        return _fail(program, str(error))
    from router.serving import serve

    # SIGHUP reads the same command line and file again; flags go on winning.
    return serve(options, program=program, reparse=read, inherited=inherited, notifier=notifier)


def _version_line(program: str) -> str:
    from broker.version import OWN_VERSION, SERVER_VERSION

    return f"{program}: v{SERVER_VERSION if program == 'nats-server' else OWN_VERSION}"


def _called_as() -> str:
    """`nats-server` when called through a link of that name, so that what scripts match stays true."""
    name = sys.argv[0].rsplit("/", 1)[-1] if sys.argv else ""
    return "nats-server" if name == "nats-server" else "gnatswarm"


def _fail(program: str, why: str) -> int:
    print(f"{program}: {why}", file=sys.stderr)
    return 1
