"""What the rules of a configuration do with one message: permissions, mappings, imports, and who may hear it.

Pure functions over Options, for `gnatswarm why`. The rules are applied by the engine's own modules (permissions, rules,
transform); the order is that of a publish: mapping, permission, streams of other accounts, services of other accounts.
Not here: who subscribes at the moment, which `router.monitoring.listeners` adds for a running broker.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gnatswarm.broker import options as opt
from gnatswarm.broker.exports import Exports
from gnatswarm.broker.quoted import quoted
from gnatswarm.broker.rules import local_service_pattern
from gnatswarm.broker.subject import is_literal, is_valid_publish, matches
from gnatswarm.broker.transform import Transform
from gnatswarm.router.config.arrivals import Arrival, Journey

# Of one message; more would be a page that nobody reads.
MOST_ARRIVALS = 100
# From account to account by services, as in broker.service_imports.
MOST_CROSSINGS = 16


class Unknown(ValueError):
    """There is no such user, or it is not clear who publishes; the text says what to do."""


def journey(options: opt.Options, subject: str, user: str = "") -> Journey:
    """The way of a message that `user` publishes to `subject`. Unknown; ValueError if it cannot be published to."""
    raw = _raw(subject)
    if not is_valid_publish(raw) or not is_literal(raw) or any(blank in raw for blank in b" \t\r\n\0"):
        what = "one subject, without blanks and wildcards"
        raise ValueError(f"{quoted(subject)} is no subject that can be published to ({what})")
    who, account, permissions = _publisher(options, user)
    found = Journey(subject, who, account)
    rules: list[str] = []
    refused: list[str] = []
    permitted = []
    # Permissions are asked about the subject that it goes to, as in the engine and on nats-server.
    for mapped, how in _mapped(options, account, raw, rules):
        rule, is_allowed = _publish_rule(permissions, mapped)
        what = _text(mapped) if how else "it"
        if is_allowed:
            rules.append(f"{who or 'everybody'} may publish {what}: {rule}")
            permitted.append((mapped, how))
        else:
            responses = " (but it may respond to what it received: allow_responses)" if _responds(permissions) else ""
            refused.append(f"{who} may not publish {what}: {rule}{responses}")
    if refused and not permitted:
        return msgspec.structs.replace(found, rules=_once(rules), stopped="; ".join(_once(refused)))
    rules += refused
    arrivals: dict[tuple[str, str, str], Arrival] = {}
    asked: set[tuple[str, bytes]] = set()
    for mapped, how in permitted:
        for arrival in (*_heard(options, account, mapped, how), *_requests(options, account, mapped, rules, asked)):
            if len(arrivals) < MOST_ARRIVALS:
                arrivals.setdefault((arrival.account, arrival.subject, arrival.how), arrival)
    return msgspec.structs.replace(found, rules=_once(rules), arrivals=tuple(arrivals.values()))


def is_stopped(options: opt.Options, user: opt.User, subject: str) -> bool:
    """Whether the user may not publish to this literal subject: then journey() says why. It looks at no other user."""
    permitted = [
        _publish_rule(user.permissions, mapped)[1] for mapped, _ in _mapped(options, user.account, _raw(subject), [])
    ]
    return bool(permitted) and not any(permitted)


def kept_out_by(user: opt.User, subject: bytes, queue: str = "") -> str:
    """The deny rule that keeps messages on `subject` from this user's wildcard subscriptions; "": none."""
    return _denial(user.permissions.subscribe_deny, subject, queue) if user.permissions is not None else ""


# ---- who publishes


def _publisher(options: opt.Options, user: str) -> tuple[str, str, opt.Permissions | None]:
    by_name = {one.shown: one for one in options.users}
    name = user or options.no_auth_user
    if name in by_name:
        return name, by_name[name].account, by_name[name].permissions
    if not user and (options.has_guests or not options.users):
        return options.auth_user, opt.GLOBAL_ACCOUNT, None
    if user and user == options.auth_user:
        return user, opt.GLOBAL_ACCOUNT, None
    known = ", ".join([*by_name][:20]) or options.auth_user or "none: nobody has to log in"
    what = f'there is no user "{user}"' if user else "it depends on who publishes: add --user NAME"
    raise Unknown(f"{what} (users: {known}{', …' if len(by_name) > 20 else ''})")


def _responds(permissions: opt.Permissions | None) -> bool:
    return permissions is not None and permissions.responses != 0


def _publish_rule(permissions: opt.Permissions | None, subject: bytes) -> tuple[str, bool]:
    if permissions is None:
        return "no permissions restrict it", True
    denial = _denial(permissions.publish_deny, subject)
    if denial:
        return f'publish deny "{denial}"', False
    if permissions.publish_allow is None:
        # (who may respond may do nothing else that is not allowed, as on nats-server)
        return ("there is no publish allow", False) if _responds(permissions) else ("no rule denies it", True)
    for rule in permissions.publish_allow:
        if matches(_raw(rule), subject):
            return f'publish allow "{rule}"', True
    return f"it is not in publish allow [{', '.join(permissions.publish_allow[:10])}]", False


def _denial(rules: tuple[str, ...], subject: bytes, queue: str = "") -> str:
    for rule in rules:
        pattern, _, of_queue = rule.partition(" ")
        if matches(_raw(pattern), subject) and (not of_queue or (queue and matches(_raw(of_queue), _raw(queue)))):
            return rule
    return ""


# ---- where it goes


def _mapped(options: opt.Options, account: str, subject: bytes, rules: list[str]) -> Iterator[tuple[bytes, str]]:
    """The subjects after the account's mappings, each with the rule; adds a line to `rules` if there is one."""
    of_account = next((one.mappings for one in options.accounts if one.name == account), ())
    mappings = options.mappings if account == opt.GLOBAL_ACCOUNT and not of_account else of_account
    for mapping in mappings:
        if not matches(_raw(mapping.subject), subject):
            continue
        made = []
        for destination, percent in mapping.destinations:
            if percent:
                transform = Transform(_raw(mapping.subject), _raw(destination), is_mapping=True)
                made.append((percent, transform(subject), " (a random number)" if transform.is_random else ""))
        total = sum(percent for percent, _, _ in made)
        texts = [f"{percent} % to {_text(to)}{random}" for percent, to, random in made]
        if total < 100:
            texts.append(f"{100 - total} % are dropped")
        rules.append(f'the mapping "{mapping.subject}" of {account}: {", ".join(texts)}')
        for percent, to, _ in made:
            yield to, f'by the mapping "{mapping.subject}", {percent} %'
        return
    yield subject, ""


def _heard(options: opt.Options, account: str, subject: bytes, how: str) -> Iterator[Arrival]:
    """In the account that it is published in, and in those that import it as a stream."""
    origin = _text(subject)
    yield _arrival(options, account, subject, how, origin)
    for other in options.accounts:
        for wanted in other.imports:
            if not wanted.is_service and wanted.account == account and matches(_raw(wanted.subject), subject):
                by = f'{other.name} imports the stream "{wanted.subject}" of {account}'
                yield _arrival(options, other.name, _renamed(wanted, subject), by, origin)


def _requests(
    options: opt.Options,
    account: str,
    subject: bytes,
    rules: list[str],
    asked: set[tuple[str, bytes]],
    passed: tuple[opt.Export, ...] = (),
) -> Iterator[Arrival]:
    """In the accounts whose services this one imports, after their mappings; and where these ask in turn.

    A request is no part of the exporter's streams: who imports those does not get it. `asked`: what has been followed;
    `passed`: the exports that have led here, none of which leads on.
    """
    if (account, subject) in asked or len(asked) == MOST_ARRIVALS or len(passed) == MOST_CROSSINGS:
        return
    asked.add((account, subject))
    importer = next((one for one in options.accounts if one.name == account), None)
    for wanted in importer.imports if importer is not None else ():
        if wanted.is_service and matches(local_service_pattern(_raw(wanted.subject), _raw(wanted.to)), subject):
            exporter = next((one for one in options.accounts if one.name == wanted.account), None)
            export = Exports.of(exporter).first_around(wanted)
            if export is None or any(one is export for one in passed):
                continue
            how = f'{account} imports the service "{wanted.subject}" of {wanted.account}'
            for mapped, by in _mapped(options, wanted.account, _requested(wanted, subject), rules):
                yield _arrival(options, wanted.account, mapped, f"{how}, then {by}" if by else how)
                yield from _requests(options, wanted.account, mapped, rules, asked, (*passed, export))


def _renaming(wanted: opt.Import) -> Transform:
    """From the exporter's subject to the local one, as `broker.rules` makes it."""
    tokens, place = _raw(wanted.to).split(b"."), 0
    for i, token in enumerate(tokens):
        if token == b"*":
            place += 1
            tokens[i] = b"$%d" % place
    return Transform(_raw(wanted.subject), b".".join(tokens))


def _renamed(wanted: opt.Import, subject: bytes) -> bytes:
    return subject if wanted.to == wanted.subject else _renaming(wanted)(subject)


def _requested(wanted: opt.Import, subject: bytes) -> bytes:
    """The subject in the exporting account for a request to this local one."""
    if is_literal(_raw(wanted.subject)):
        return _raw(wanted.subject)
    return subject if wanted.to == wanted.subject else _renaming(wanted).reversed()(subject)


def _arrival(options: opt.Options, account: str, subject: bytes, how: str, origin: str = "") -> Arrival:
    may, may_not = [], []
    for user in options.users:
        if user.account != account:
            continue
        rule = _hearing(user.permissions, subject)
        if rule:
            may_not.append(f"{user.shown}: {rule}")
        else:
            may.append(user.shown)
    return Arrival(account, _text(subject), how, tuple(may), tuple(may_not), origin=origin)


def _hearing(permissions: opt.Permissions | None, subject: bytes) -> str:
    """Why a user may not hear this subject; "": it may."""
    if permissions is None:
        return ""
    denial = _denial(permissions.subscribe_deny, subject)
    if denial:
        return f'subscribe deny "{denial}"'
    allowed = permissions.subscribe_allow
    if allowed is None or any(matches(_raw(rule.partition(" ")[0]), subject) for rule in allowed):
        return ""
    return f"it is not in subscribe allow [{', '.join(allowed[:10])}]"


def _once(lines: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")
