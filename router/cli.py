"""The command `gnatswarm`, also under the name `nats-server`: arguments in, exit code out.

Decides what is requested (serve, test a configuration, send a signal, ask a running broker, print) and imports only
what that needs: `-v` and `-h` take little longer than the interpreter's start.
"""

from __future__ import annotations

import io
import os
import sys

from gnatswarm.router.config.flags import BadCommandLine, CommandLine, nearest, parse
from gnatswarm.shards.boundary.children import HANDLED_SIGNALS

# Type checkers know this name; importing `typing` would take time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn

    from gnatswarm.broker.options import Options
    from gnatswarm.router.commands.operator_arguments import OperatorArguments
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.listening.head_start import HeadStart
    from gnatswarm.router.listening.inherited import Inherited
    from gnatswarm.router.supervision.notify import Notifier
    from gnatswarm.shards.boundary.keeping import Post
else:
    import _signal as signal  # the same functions; `signal` makes enumerations of all numbers


COMMANDS = (
    *("help", "version", "status", "health", "scale", "rebalance", "restart", "upgrade", "reload", "why", "top"),
    *("doctor", "bench", "report", "ingest", "compact", "place", "suggest-permissions"),
    *("pub", "sub", "req", "reply", "events", "completion", "config"),
)
# They have a running broker do something, and wait for its end.
ACT = ("scale", "rebalance", "restart", "upgrade", "reload")
SPARK = ("report", "ingest", "compact", "place", "suggest-permissions")
# A client for the terminal: a separate program, like the load generator.
TALK = ("pub", "sub", "req", "reply", "events")
# Which module, run with which words, prints the help of a command that is a program of its own. That of the Spark jobs
# needs no Spark, so it is also shown where Spark is not installed.
HELP_PROGRAMS = {
    "bench": ("gnatswarm.loadtest.bench", "-h"),
    **{job: ("gnatswarm.spark.jobs.arguments", job) for job in SPARK},
    **{command: ("gnatswarm.loadtest.talk", command, "-h") for command in TALK},
}


# A service manager's variables for the process that it has started.
MANAGERS = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC")

HELP = ("-h", "-help", "--h", "--help")


def main(argv: list[str] | None = None, *, program: str = "", owner: int = -1) -> int:
    """Run with these arguments (default: the process's own) under this program name (default: from argv[0]).

    `owner`: a descriptor whose end stops a broker; -1: none.
    """
    # What a broker is told before it can act waits; SIGTTIN, for one, would stop this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        try:
            return _main(argv, program, owner, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except KeyboardInterrupt:
        return _interrupted()


def _main(argv: list[str] | None, program: str, owner: int, signals: set[int]) -> int:
    """As main(); `signals`: which are blocked while a command runs that is no broker."""
    # One that follows another program of the broker is called as that was.
    program = os.environ.get("GNATSWARM_SUCCESSION", "").partition(":")[2] or program or _called_as()
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_standard_descriptors()
    try:
        if arguments[:1] == ["_shard"]:
            return _shard(arguments[1:])
        if arguments == ["_formats"]:
            return _formats()
        line = parse(arguments)
        if not _starts_broker(line):
            _show_all_characters()
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        code = _run(line, program, owner, arguments)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
        return code
    except BadCommandLine as bad:
        return _fail(program, f"{bad}\nrun {program} -h to see every flag")
    except BrokenPipeError:  # as with `| head`
        _discard_output()
        return 1
    except OSError as error:
        if not _is_output_full():
            raise
        _discard_output()
        return _fail(program, f"standard output: {error.strerror}")


def _open_standard_descriptors() -> None:
    """Where one is closed (`2>&-`), what is opened next would have its number, and be what errors are written to."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it is the lowest free number


def _show_all_characters() -> None:
    """Show by number what the encoding of standard output lacks, such as an arrow in Latin 1: else it is an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _interrupted() -> int:
    """End as a program does that leaves ^C alone, so that a shell script stops, too."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 1


def _is_output_full() -> bool:
    """Whether standard output takes no more: its device is full, or the file as large as it may be."""
    try:
        number = sys.stdout.fileno() if sys.stdout is not None else -1
    except (OSError, ValueError):  # no file, or closed
        number = -1
    try:
        if number >= 0:
            os.write(number, b"\n")
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Discard the rest of standard output, also at Python's own last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shard(arguments: list[str]) -> int:
    """A shard of an upgrade, which the keeper of another version starts."""
    from gnatswarm.keeper import run_shard

    return run_shard(arguments)


def _formats() -> int:
    """What this version says to others of one broker, as JSON, for a broker that is to be upgraded to it."""
    from gnatswarm.keeper import formats
    from gnatswarm.router.supervision.successor import own_answer

    print(own_answer(formats()))
    return 0


def _starts_broker(line: CommandLine) -> bool:
    prints = any(line.asks(flag) for flag in ("h", "help_tls", "v", "t"))
    return not (line.words or prints or line.values.get("sl"))


def _run(line: CommandLine, program: str, owner: int, arguments: list[str]) -> int:
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
        return _signal(str(line.values["sl"]), program)
    if command in ("scale", "rebalance", "restart", "upgrade", "status", "health", "reload", "why"):
        return _operate(line, program)
    if command == "top":
        return _top(line)
    if command == "doctor":
        return _doctor(line, program)
    if command in SPARK:
        return _spark(command, line.words[1:], program)
    if command == "config":
        return _config(line, program)
    if command == "completion":
        return _completion(line.words[1:], program)
    if command == "bench":
        # A separate program: the load generator shares nothing with the broker.
        _become("gnatswarm.loadtest.bench", *line.words[1:])
    if command in TALK:
        _become("gnatswarm.loadtest.talk", command, *line.words[1:])
    if command:
        hint = nearest(command, COMMANDS) or f" (there are {', '.join(COMMANDS)})"
        raise BadCommandLine(f'unrecognized command: "{line.words[0]}"{hint}')
    if "why" in line.values and not line.asks("t"):
        raise BadCommandLine(f"-why needs -t and a file (as in: {program} -t -c FILE --why orders.new --user ann)")
    return _test(line, program) if line.asks("t") else _serve(line, program, owner, arguments)


def _help(command: str, program: str) -> int:
    """Print the help of this command, or of the program."""
    from gnatswarm.router.config.help import command_help_text, help_text

    if command in HELP_PROGRAMS:
        _become(*HELP_PROGRAMS[command])
    print(command_help_text(command, program) or help_text(program), end="")
    return 0


def _signal(asked: str, program: str) -> int:
    from gnatswarm.router.commands.signals import SignalError, find_pid, send

    name, _, target = asked.partition("=")
    try:
        if name == "reload":
            from gnatswarm.router.commands import operator_commands

            code = operator_commands.reload_quietly(find_pid(target, program))
            if code is not None:
                return code
        send(asked, program)
    except SignalError as error:
        return _fail(program, str(error))
    return 0


def _operate(line: CommandLine, program: str) -> int:
    from gnatswarm.keeper import import_formats

    import_formats()
    from gnatswarm.router.commands.operator_arguments import operator_arguments

    asked = operator_arguments(line, program)
    if asked.config is not None:
        return _why(asked.config, asked.subject, asked.user, program, as_json=asked.as_json)
    import signal

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # Python would notice a ^C that comes just before a wait only behind it, when the answer has come
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _ask_aloud(asked, program) if is_default and asked.command in ACT else _ask(asked, program)
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _ask_aloud(asked: OperatorArguments, program: str) -> int:
    """Ask; at ^C, which must have its default action, say that the broker goes on, and end by it. In the main thread.

    A thread waits for ^C: a handler in Python would run only behind a wait of the main thread that had just begun.
    """
    import _thread

    is_over = False

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        if is_over:
            return
        try:
            _fail(program, f"not waited for: the broker goes on; `{program} status` shows how it stands")
        finally:  # (^C may have ended who reads that, too)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiting = _thread.start_new_thread(wait, ())
    try:
        return _ask(asked, program)
    finally:
        is_over = True
        signal.pthread_kill(waiting, signal.SIGINT)  # for that thread alone
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ask(asked: OperatorArguments, program: str) -> int:
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
    if asked.command == "rebalance":
        return operator_commands.rebalance(pid=pid, port=asked.port)
    if asked.finishes:
        return operator_commands.finish(pid=pid, port=asked.port)
    if asked.command == "upgrade":
        return operator_commands.upgrade(asked.executable, asked.tls_within_s, pid=pid, port=asked.port)
    if asked.command == "restart":
        return operator_commands.restart(asked.tls_within_s, pid=pid, port=asked.port)
    if asked.command == "reload":
        return operator_commands.reload(pid=pid, port=asked.port)
    if asked.command == "why":
        return operator_commands.why(asked.subject, asked.user, pid=pid, port=asked.port, as_json=asked.as_json)
    return operator_commands.status(pid=pid, port=asked.port, as_json=asked.as_json)


def _why(line: CommandLine, subject: str, user: str, program: str, *, as_json: bool) -> int:
    """Explain a message by the rules of a file; no broker is asked."""
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build

    try:
        options = build(line).options
    except ConfigError as error:
        return _fail(program, _with_lines(error))
    return _explain(options, subject, user, program, as_json=as_json)


def _explain(options: Options, subject: str, user: str, program: str, *, as_json: bool) -> int:
    from gnatswarm.router.config import arrivals
    from gnatswarm.router.config.journey import journey

    try:
        found = journey(options, subject, user)
    except ValueError as error:
        return _fail(program, str(error))
    print(arrivals.as_json(found) if as_json else arrivals.shown(found))
    return 0 if arrivals.is_heard(found) else 1


def _spark(job: str, arguments: list[str], program: str) -> int:
    """Run a Spark job, which is a separate program: the broker does not import Spark, nor Spark the broker."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        return _fail(program, f"{job} needs Spark: pip install 'gnatswarm[spark]' (some 700 MB, Java included)")
    module = f"gnatswarm.spark.jobs.{job.replace('-', '_')}"
    if job == "suggest-permissions" and any(word.split("=")[0] == "--dry-run" for word in arguments):
        return _dry_run([sys.executable, "-P", "-m", module, *arguments], program)
    _become(module, *arguments)


def _become(module: str, *words: str) -> NoReturn:
    """Go on as another program. It unblocks ^C, which else would end Python with a traceback while it reads modules."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])


def _dry_run(command: list[str], program: str) -> int:
    """Apply a configuration's permissions to what a Spark job says that users did."""
    from gnatswarm.router.commands import dry_run
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build

    try:
        path, command, is_json = dry_run.asked(command)
        found = dry_run.run(build(parse(["-c", path])).options, command)
    except ConfigError as error:
        return _fail(program, _with_lines(error))
    except dry_run.JobFailed as failed:
        return _fail(program, str(failed)) if str(failed) else 1
    print(dry_run.as_json(found) if is_json else dry_run.shown(found, path))
    return 1 if any(not one.is_open for one in found.denied) else 0


def _config(line: CommandLine, program: str) -> int:
    """`config get`: print options as a file and flags make them."""
    words = line.words[1:]
    if not words or words[0] != "get":
        raise BadCommandLine(f"config: what to do? (as in: {program} config get max_payload -c FILE)")
    names = []
    while words[1:] and not words[1].startswith("-"):
        names.append(words.pop(1))
    behind = parse(words[1:])
    both = CommandLine(line.values | behind.values, line.spelled | behind.spelled, [])
    from gnatswarm.router.commands import config_get
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build

    try:
        found = config_get.values(build(both).options, [*names, *behind.words])
    except ConfigError as error:
        return _fail(program, _with_lines(error))
    except config_get.NoSuchOption as error:
        return _fail(program, str(error))
    print(config_get.shown(found, as_json=both.asks("json")))
    return 0


def _completion(words: list[str], program: str) -> int:
    from gnatswarm.router.commands.completion import SHELLS, completion

    if len(words) != 1 or words[0] not in SHELLS:
        raise BadCommandLine(f"completion: for which shell? (as in: {program} completion {'|'.join(SHELLS)})")
    print(completion(words[0], COMMANDS, HELP_PROGRAMS), end="")
    return 0


def _top(line: CommandLine) -> int:
    """Show the monitoring pages at the given address, at -m's port, or at the usual port of this host."""
    words = line.words[1:]
    url = words.pop(0) if words and not words[0].startswith("-") else ""
    behind = parse(words)
    if behind.words:
        raise BadCommandLine(f'unexpected "{behind.words[0]}" after top')
    if others := [name for first, name in (line.spelled | behind.spelled).items() if first != "m"]:
        raise BadCommandLine(f"top: -{others[0]} has no effect; write the pages' address, or their port with -m")
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
    from gnatswarm.keeper import import_formats

    import_formats()
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build

    if not line.config_file:
        return _fail(program, "must specify [-c, --config] option to check configuration file syntax")
    user = ""
    if "why" in line.values:  # --user says who publishes, and changes no option
        user = str(line.values.pop("user", ""))
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
    if "why" in line.values:
        return _explain(built.options, str(line.values["why"]), user, program, as_json=line.asks("json"))
    return 0


def _serve(line: CommandLine, program: str, owner: int, arguments: list[str]) -> int:
    # A service manager's variables are for this process only: take them before anything is started.
    inherited, notifier = None, None
    managers = {name: os.environ[name] for name in MANAGERS if name in os.environ}
    if "LISTEN_FDS" in os.environ or "NOTIFY_SOCKET" in os.environ:
        from gnatswarm.router.listening.inherited import Inherited
        from gnatswarm.router.listening.listeners import ListenError
        from gnatswarm.router.supervision.notify import Notifier

        notifier = Notifier.take(os.environ, os.getpid())
        try:
            inherited = Inherited.take(os.environ, os.getpid())
        except ListenError as error:
            return _fail(program, str(error))
    from gnatswarm.keeper import keep

    begun: list[HeadStart] = []

    def begin() -> HeadStart | None:
        if inherited is None:
            from gnatswarm.router.start_early import start_early

            begun.extend(filter(None, (start_early(line),)))
        return begun[0] if begun else None

    # Forks here: this process becomes the keeper, which imports the shards' modules while the router reads its
    # configuration.
    own = _own_command(arguments)
    return keep(
        lambda post: _route(line, program, post, inherited, notifier, own, begun[0] if begun else None),
        begin=begin,
        owner=owner,
        program=program,
        arguments=arguments,
        environment=managers,
    )


def _own_command(arguments: list[str]) -> list[str]:
    """The command that runs this program, without its arguments."""
    before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    if sys.orig_argv[len(before) :] != arguments or "gnatswarm.router.owned" in before:
        return [sys.executable, "-P", "-m", "gnatswarm"]
    return [sys.executable, *(os.path.abspath(word) if os.path.isfile(word) else word for word in before[1:])]


def _route(
    line: CommandLine,
    program: str,
    post: Post,
    inherited: Inherited | None,
    notifier: Notifier | None,
    own: list[str],
    begun: HeadStart | None,
) -> int:
    """Run the router, in a process of its own."""
    from gnatswarm.router.config.conf_tree import ConfigError
    from gnatswarm.router.config.options_build import build, build_parsed
    from gnatswarm.router.listening.listeners import ListenError

    def read(instead_of: Options | None = None) -> Options:
        options = build(line, instead_of=instead_of).options
        return options if inherited is None else inherited.adapt(options)

    options = None
    if post.legacy is None:
        try:
            # What the ports were opened for, also if the file has changed since.
            options = read() if begun is None else begun.options or build_parsed(begun.parsed, line).options
        except (ConfigError, ListenError) as error:
            return _fail(program, _with_lines(error) if isinstance(error, ConfigError) else str(error))
    from gnatswarm.router.serving import serve

    # SIGHUP reads the same command line and file again; flags still override the file.
    return serve(
        options,
        program=program,
        post=post,
        reparse=read,
        inherited=inherited,
        begun=begun,
        notifier=notifier,
        own=own,
    )


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
