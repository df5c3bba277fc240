"""The command `gnatswarm`, also under the name `nats-server`: arguments in, exit code out.

Decides what is requested (serve, test a configuration, send a signal, ask a running broker, print) and imports only
what that needs: `-v` and `-h` take little longer than the interpreter's start.
"""

from __future__ import annotations

import os
import sys

from gnatswarm.router.config.flags import BadCommandLine, CommandLine, nearest, parse

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gnatswarm.broker.options import Options
    from gnatswarm.router.config.conf_tree import ConfigError


COMMANDS = (
    *("help", "version", "status", "health", "scale", "reload", "top", "doctor", "bench"),
    *("report", "ingest", "compact"),
)


HELP = ("-h", "-help", "--h", "--help")


def main(argv: list[str] | None = None, *, program: str = "") -> int:
    """Run with these arguments (default: the process's own) under this program name (default: from argv[0])."""
    program = program or _called_as()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(parse(arguments), program)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
        return code
    except BadCommandLine as bad:
        return _fail(program, f"{bad}\nrun {program} -h to see every flag")
    except BrokenPipeError:  # as with `| head`: discard the rest, also at Python's own last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(line: CommandLine, program: str) -> int:
    command = line.words[0].lower() if line.words else ""
    if line.asks("h") or command == "help" or any(word in HELP for word in line.words[1:]):
        about = line.words[1].lower() if command == "help" and line.words[1:] else command
        return _help(about, program)
    if line.asks("help_tls"):
        from gnatswarm.router.config.help import tls_help_text

        print(tls_help_text(program), end="")
        return 0
    if line.asks("v") or command == "version":
        print(_version_line(line, program))
        return 0
    if line.values.get("sl"):
        from gnatswarm.router.commands.signals import SignalError, send

        try:
            send(str(line.values["sl"]), program)
        except SignalError as error:
            return _fail(program, str(error))
        return 0
    if command in ("scale", "status", "health", "reload"):
        return _operate(line, program)
    if command == "top":
        return _top(line)
    if command == "doctor":
        return _doctor(line, program)
    if command in ("report", "ingest", "compact"):
        return _spark(command, line.words[1:], program)
    if command == "bench":
        # A separate program: the load generator shares nothing with the broker.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "gnatswarm.loadtest.bench", *line.words[1:]])
    if command:
        hint = nearest(command, COMMANDS) or f" (there are {', '.join(COMMANDS)})"
        raise BadCommandLine(f'unrecognized command: "{line.words[0]}"{hint}')
    return _test(line, program) if line.asks("t") else _serve(line, program)


def _help(command: str, program: str) -> int:
    """Print the help of this command, or of the program."""
    from gnatswarm.router.config.help import command_help_text, help_text

    if command in ("report", "ingest", "compact"):
        # This help needs no Spark, so it is also shown where Spark is not installed.
        os.execv(sys.executable, [sys.executable, "-P", "-m", "gnatswarm.spark.jobs.arguments", command])
    if command == "bench":
        os.execv(sys.executable, [sys.executable, "-P", "-m", "gnatswarm.loadtest.bench", "-h"])
    print(command_help_text(command, program) or help_text(program), end="")
    return 0


def _operate(line: CommandLine, program: str) -> int:
    from gnatswarm.router.commands.operator_arguments import operator_arguments

    asked = operator_arguments(line, program)
    from gnatswarm.router.commands import operator_commands
    from gnatswarm.router.commands.signals import SignalError, find_pid

    try:
        pid = find_pid(asked.pid, program) if asked.pid else None
    except SignalError as error:
        return _fail(program, str(error))
    if asked.command == "scale":
        return operator_commands.scale(asked.shards, pid=pid, port=asked.port)
    if asked.command == "health":
        return operator_commands.health(pid=pid, port=asked.port)
    if asked.command == "reload":
        return operator_commands.reload(pid=pid, port=asked.port)
    return operator_commands.status(pid=pid, port=asked.port, as_json=asked.as_json)


def _spark(job: str, arguments: list[str], program: str) -> int:
    """Run a Spark job, which is a separate program: the broker does not import Spark, nor Spark the broker."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        return _fail(program, f"{job} needs Spark: pip install 'gnatswarm[spark]' (some 400 MB, Java included)")
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"gnatswarm.spark.jobs.{job}", *arguments])


def _top(line: CommandLine) -> int:
    """Show the monitoring pages at the given address, at -m's port, or at the usual port of this host."""
    words = line.words[1:]
    url = words.pop(0) if words and not words[0].startswith("-") else ""
    behind = parse(words)
    if behind.words:
        raise BadCommandLine(f'unexpected "{behind.words[0]}" after top')
    port = (line.values | behind.values).get("m", 8222)
    from gnatswarm.router.commands.top import run

    return run(url or f"http://127.0.0.1:{port}")


def _doctor(line: CommandLine, program: str) -> int:
    behind = parse(line.words[1:])
    if behind.words:
        raise BadCommandLine(f'unexpected "{behind.words[0]}" after doctor')
    from gnatswarm.router.commands.doctor import run

    both = CommandLine(line.values | behind.values, line.spelled | behind.spelled, [])
    return run(both, as_json=both.asks("json"), program=program)


def _test(line: CommandLine, program: str) -> int:
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build

    if not line.config_file:
        return _fail(program, "must specify [-c, --config] option to check configuration file syntax")
    try:
        built = build(line)
    except ConfigError as error:
        return _fail(program, _with_lines(error))
    if built.warnings:  # a start would accept it; nats-server's -t fails nevertheless
        return _fail(program, "\n".join(built.warnings))
    for notice in built.options.notices:
        print(f"{program}: {notice}", file=sys.stderr)
    digest = f" ({built.options.config_digest})" if built.options.config_digest else ""
    print(f"{program}: configuration file {line.config_file} is valid{digest}", file=sys.stderr)
    return 0


def _serve(line: CommandLine, program: str) -> int:
    # A service manager's variables are for this process only: take them before anything is started.
    inherited, notifier = None, None
    if "LISTEN_FDS" in os.environ or "NOTIFY_SOCKET" in os.environ:
        from gnatswarm.router.listening.inherited import Inherited
        from gnatswarm.router.listening.listeners import ListenError
        from gnatswarm.router.supervision.notify import Notifier

        notifier = Notifier.take(os.environ, os.getpid())
        try:
            inherited = Inherited.take(os.environ, os.getpid())
        except ListenError as error:
            return _fail(program, str(error))
    # Start the zygote now: it imports the shards' modules while we read the configuration.
    from gnatswarm.router.supervision.zygote import prepare

    prepare()
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build
    from gnatswarm.router.listening.listeners import ListenError

    def read() -> Options:
        options = build(line).options
        return options if inherited is None else inherited.adapt(options)

    try:
        options = read()
    except (ConfigError, ListenError) as error:
        return _fail(program, _with_lines(error) if isinstance(error, ConfigError) else str(error))
    from gnatswarm.router.serving import serve

    # SIGHUP reads the same command line and file again; flags still override the file.
    return serve(options, program=program, reparse=read, inherited=inherited, notifier=notifier)


def _with_lines(error: ConfigError) -> str:
    from gnatswarm.router.config.excerpt import with_lines

    return with_lines(error)


def _version_line(line: CommandLine, program: str) -> str:
    from gnatswarm.broker.version import DEFAULT_COMPATIBILITY, OWN_VERSION, SERVER_VERSIONS

    compatibility = str(line.values.get("compatibility", DEFAULT_COMPATIBILITY))
    if compatibility not in SERVER_VERSIONS:
        raise BadCommandLine(f'-compatibility "{compatibility}" is none of {", ".join(SERVER_VERSIONS)}')
    return f"{program}: v{SERVER_VERSIONS[compatibility] if program == 'nats-server' else OWN_VERSION}"


def _called_as() -> str:
    """`nats-server` when called through a link of that name, so that what scripts match stays true."""
    name = sys.argv[0].rsplit("/", 1)[-1] if sys.argv else ""
    return "nats-server" if name == "nats-server" else "gnatswarm"


def _fail(program: str, why: str) -> int:
    print(f"{program}: {why}", file=sys.stderr)
    return 1
