"""The text of `-h`: enough to learn the program from. A test holds it against the table of flags."""

TEXT = """\
{program}: a NATS message broker that uses all cores of one host.

  {program}                            clients on port 4222 of every address, one shard per core
  {program} -c gnats.conf              options from a file (nats-server's own syntax)
  {program} -p -1 -m 8222 -DV          any free port, monitoring pages on 8222, log everything
  {program} reload                     have the running broker read its file again, and wait for the result

Usage: {program} [flags] [command]      one dash or two, `-p 4222` or `-p=4222`; flags win over the file

Server:
    -a, --addr, --net <host>         listen on this address (default: every one, IPv4 and IPv6)
    -p, --port <port>                port for clients (default: 4222; -1: any free one, see --ports_file_dir)
    -n, --name, --server_name <name> name shown to clients and on the monitoring pages (default: the server's id)
    -c, --config <file>              read options from this file
    -t                               test the file: say all that is wrong with it, and exit
        --why <subject>              with -t: and who would get a message by its rules, or what stops it; --user <name>:
                                       who publishes; exit code 1 when nobody would get it
    -m, --http_port <port>           serve the monitoring pages on this port (default: off; -1: any free one)
    -ms, --https_port <port>         the same encrypted, with the certificate of --tls
    -P, --pid <file>                 write the process id here
        --ports_file_dir <dir>       write <dir>/{program}_<pid>.ports: the ports in use, as JSON
        --client_advertise <addr>    host[:port] to tell clients instead of our own
        --compatibility <version>    behave like this nats-server where two differ: 2.9 or 2.15 (default: 2.15)

Shards:
        --shards <n>                 how many processes share the work, 1 to 62 (default: one per usable core)
        --accept <how>               how a connection finds its shard (default: reuseport)
                                       reuseport: the kernel spreads connections
                                       handoff: the least loaded shard gets the next; evener with few connections
        --placement <how>            what is done when shards were added (default: even)
                                       even: connections move until every shard has as many
                                       stay: none moves; `{program} rebalance` does it later

Statistics (what is published where, how far it fans out, in files for `{program} report`):
        --stats-dir, --stats_dir <dir>       write them here (default: ~/.local/state/gnatswarm/stats/<port>)
        --stats-window, --stats_window <time>  what one row covers, such as 10s (default: 10s)
        --no-stats, --no_stats               write none, and count nothing per subject

Logging (to standard error unless a file is named):
    -l, --log <file>                 log to this file
        --log_size_limit <bytes>     start a new file when it has grown to this (default: never)
        --log_format <how>           text, as nats-server writes it, or json (default: text)
    -s, --syslog                     log to the local syslog
    -r, --remote_syslog <url>        log to the syslog at udp://host:514, tcp://host:514 or unix:///path
    -T, --logtime                    date and time on every line (default: true; off: -T=false)
        --logtime_utc                in UTC instead of local time
    -D, --debug                      say what is decided: connections, links, why something was closed
    -V, --trace                      show every operation of every client; slow
    -VV, -DV, -DVV                   the same as -V, and both together
        --max_traced_msg_len <n>     show no more than so many bytes of a message (default: all)

Who may connect (several users: in the file, authorization {{ users [ ... ] }}):
        --user <user>                the user every client must give, with
        --pass <password>            its password
        --auth <token>               the token every client must give instead

A cluster with other servers, gnatswarms or nats-servers (more in the file: cluster {{ … }}):
        --cluster, --cluster_listen <url>    listen for them: nats://[user:password@]host:port
        --cluster_name <name>        the same on all of them (default: one is made up)
        --routes <urls>              connect to these of them, with commas between; they tell of the others
        --cluster_advertise <addr>   host[:port] at which they reach this broker
        --no_advertise               clients are not told of the others
        --connect_retries <n>        how often one that others told of is tried again (default: 0)

Encryption (--help_tls says more):
        --tls                        clients have to encrypt, with
        --tlscert, --tlskey <file>   our certificate and its key, both PEM
        --tlsverify                  clients have to give a certificate as well, by an authority in
        --tlscacert <file>           this file

A running broker:
    -sl, --signal <what>[=<pid>]     send it a signal; <pid> is a process id or a pid file (default: the only one)
                                       quit, term: stop    stop: kill at once    reload: read the file again
                                       reopen: open the log file again           ldm: leave slowly (lame duck)
    {program} scale <n>              add or remove shards while clients talk
    {program} rebalance              move connections until every shard has as many; clients do not notice
    {program} restart                replace all shards, one after another; clients do not notice
    {program} upgrade [<program>]    become another version of itself; clients do not notice
    {program} status                 the state of the shards; --json for programs
    {program} health                 exit code 0 when all of them serve, 1 and why when not; for health checks
    {program} reload                 have it read its file again; prints what changed, or every error (exit code 1)
    {program} why <subject>          who would get a message, and which rule stops it; --user <name>; --json;
                                       -c <file>: by the rules of this file, without a broker
                                       all eight: -p <port> or -P <pid> say which broker, when several run
    {program} doctor [-c <file>]     check this machine and a configuration for problems; --json
    {program} top [<url>]            watch a broker, or a nats-server, by its monitoring pages
                                       (default: http://127.0.0.1:8222; -m <port>: another port)
    {program} bench                  measure a broker, or compare several; {program} bench -h says how

Messages from a terminal, to this broker or any NATS server ({program} pub -h, …):
    {program} pub <subject> <text>   publish; with headers, rates, a message for each line of a file
    {program} sub <subject> …        show what is published there; --count: rates
    {program} req <subject> <text>   send a request and show the response
    {program} reply <subject>        answer requests: with the request, a text, or what a command prints
    {program} events                 connections, refused log-ins, shutdown: what the system account is told

    {program} report                 what it did, as one page: hot subjects, fan-out, skew, advice (needs Spark);
                                       -h says of which broker, and how
    {program} ingest                 the same files into Parquet, each row once; -h says how
    {program} compact                whole days of that in few files; -h says how
    {program} place                  which services belong on which shard, by Spark; -h says how
    {program} suggest-permissions    the least permissions for what each user did, by Spark;
                                       --dry-run <file>: what that configuration would have denied; -h says how

    {program} config get [<name> …]  the options that -c <file> and flags make, by their names in the file; --json
    {program} completion <shell>     a script that completes commands and flags in bash, zsh or fish

    -h, --help                       this text; after a command, that command's
    -v, --version                    the version

Taken from nats-server's command lines, but not offered; announced and ignored:
    -js, --jetstream, -sd, --store_dir, --profile

Exit codes: 0 stopped (by term, with compatibility "2.9": 1); 1 could not start (the reason is on standard error).
"""

TLS_TEXT = """\
{program} -p 4222 --tls --tlscert server.pem --tlskey server.key

Clients get INFO in plain, which says that TLS is required, and then shake hands; TLS 1.2 or newer.

    --tlscert <file>     PEM: the certificate that clients see, then those between it and its authority
    --tlskey <file>      PEM: its private key, without a password
    --tlsverify          clients have to give a certificate, too
    --tlscacert <file>   PEM: the authorities of theirs (default: the system's)

In the file, which has more: tls {{ cert_file, key_file, ca_file, verify, verify_and_map, timeout, min_version,
cipher_suites, curve_preferences, handshake_first }}, and beside it allow_non_tls: true for clients of both kinds.
Reloading ({program} reload) reads the certificates again; open connections stay as they are.

A certificate to try with, for this machine alone:
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \\
        -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout server.key -out server.pem
"""


_WHICH = """\
    -p, --port <port>    the broker with this port for clients
    -P, --pid <pid>      the one with this process id, or the id in this file
                         (default: the only broker of this user)
"""
_TLS = """\
Clients with TLS move as well. The processes before stay to encrypt for them, and do nothing else, until those clients
have left or an hour has passed; then the clients are told to connect again, and closed 10 to 20 seconds later. A
restart or upgrade meanwhile need not wait. `{program} status` shows these processes.

    --tls-within <duration>  how long they stay at most, as in 10m (default: 1h); 0: no client with TLS moves, all are
                         told at once
    --finish             instead: end those that are left now
"""
# Help by command. Commands that are not here are programs of their own, and print their own help.
COMMANDS = {
    "status": (
        """\
{program} status [-p <port> | -P <pid>] [--json]

Shows a running broker's shards: state, connections, subscriptions, messages per second, how late their event loops
are, CPU. Asks the broker over its operators' socket; no port for monitoring is needed.

"""
        + _WHICH
        + """\
    --json               one JSON document, for programs
"""
    ),
    "health": """\
{program} health [-p <port> | -P <pid>]

Exit code 0 when every shard of a running broker serves; 1 with the reason when not, or when no broker answers. For
health checks that cannot reach the monitoring pages.

"""
    + _WHICH,
    "scale": """\
{program} scale <n> [-p <port> | -P <pid>]

Has a running broker use <n> shards, 1 to 62, while clients talk, and waits until they serve. Connections move to new
shards until all have as many, unless the broker was started with --placement stay. The clients of a shard that leaves
move to the others without noticing; those that cannot (TLS) are told to connect elsewhere, and closed after ten
seconds.

"""
    + _WHICH,
    "rebalance": """\
{program} rebalance [-p <port> | -P <pid>]

Has a running broker move connections from shards with many to shards with few, until they have as many, and waits for
that. Clients do not notice. Connections with TLS stay where they are, those with a placement rule where it says. At
most 1,000 a second leave a shard.

"""
    + _WHICH,
    "restart": """\
{program} restart [--tls-within <duration>] [-p <port> | -P <pid>]
{program} restart --finish [-p <port> | -P <pid>]

Replaces all shards of a running broker by new processes, one after another, and waits for that: against leaks, or
for another affinity. Clients move and do not notice. One shard more runs meanwhile. A connection to other servers is
made anew at the end. Goes on if this command is ended. New libraries need `{program} upgrade`: the new processes have
the modules of the one that was started.

"""
    + _TLS
    + _WHICH,
    "upgrade": """\
{program} upgrade [<program>] [--tls-within <duration>] [-p <port> | -P <pid>]
{program} upgrade --finish [-p <port> | -P <pid>]

Replaces every process of a running broker by another version of itself, without a client noticing, and waits for that:
the shards as in `{program} restart`, then the router, then the process that was started, which keeps its pid. The new
version is asked first whether it understands what this one says; where it does not, or cannot be run, nothing changes.
Where a part of it does not serve, the version before serves on. Goes on if this command is ended.

"""
    + _TLS
    + """\
    <program>            the command gnatswarm of the other version, in an environment of its own
                         (default: the one that the broker was started with, where that was replaced)
"""
    + _WHICH,
    "reload": """\
{program} reload [-p <port> | -P <pid>]

Has a running broker read its configuration again, and waits until it holds on every shard. Prints what has changed;
or every error, and then nothing has changed. Exit code 0 only when all of the file holds.

"""
    + _WHICH,
    "why": """\
{program} why <subject> [--user <name>] [-c <file> | -p <port> | -P <pid>] [--json]

Says who would get a message: which permission lets the user publish it or stops it, which mapping renames it, which
accounts import it, and who subscribes at the moment, on which shard and in which queue group. Publishes nothing. Exit
code 1 when nobody would get it.

    --user <name>        who publishes: a user, or an nkey (default: clients without credentials)
    -c, --config <file>  by the rules of this file alone, without a running broker: who may hear it
                         (also: {program} -t -c <file> --why <subject> [--user <name>], which tests the file first)
"""
    + _WHICH
    + """\
    --json               one JSON document, for programs
""",
    "config": """\
{program} config get [<name> …] [-c <file>] [flags] [--json]

Prints the options that a broker would have with this file and these flags: the value of one name, or a line for each
(all, without a name). Sizes are in bytes, durations in seconds; passwords are not shown. Asks no running broker.

    -c, --config <file>  the configuration to look at
    --json               one JSON document, for programs
""",
    "completion": """\
{program} completion bash|zsh|fish

Prints a script that completes commands, flags and some of their values in that shell:

    bash                 source <({program} completion bash), in ~/.bashrc
    zsh                  source <({program} completion zsh), in ~/.zshrc behind compinit
    fish                 {program} completion fish > ~/.config/fish/completions/gnatswarm.fish
""",
    "doctor": """\
{program} doctor [-c <file>] [flags] [--json]

Checks this machine and the configuration that the file and the flags make (the flags of a start: -p, -m, --shards,
…) for problems, and says what to do about them. Starts nothing, and changes nothing. Exit code 1 when a broker would
not start or not work.

    -c, --config <file>  the configuration to look at
    --json               one JSON document, for programs
""",
    "top": """\
{program} top [<url>] [-m <port>]

Shows a broker, or a nats-server, in a terminal, read from its monitoring pages every second. Needs the extra `top`:
pip install 'gnatswarm[top]'

    <url>                where the pages are (default: http://127.0.0.1:8222); http://USER:PASSWORD@HOST:PORT where they
                         want a password, else it is asked for
    -m <port>            another port of this host

Keys: c s p f t F T i u sort the connections, n changes between connections and subjects, q ends.
""",
}


def command_help_text(command: str, program: str) -> str:
    """What `COMMAND -h` prints; "": the command has no text here."""
    return COMMANDS.get(command, "").format(program=program)


def help_text(program: str) -> str:
    """The whole text for a program of this name."""
    return TEXT.format(program=program)


def tls_help_text(program: str) -> str:
    """What --help_tls says."""
    return TLS_TEXT.format(program=program)
