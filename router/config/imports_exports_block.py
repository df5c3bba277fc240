"""Reads `exports` and `imports` of one account, each a list of blocks.

Each entry is kept with its place, so that `router.config.imports_exports_rules`, which sees all accounts, can report
where imports and exports do not fit. A restriction of an export that this broker does not enforce is a problem, never
a notice.
"""

from __future__ import annotations

from gnatswarm.broker.options import Export, Import
from gnatswarm.broker.rules import local_pattern, local_service_pattern
from gnatswarm.broker.subject import is_literal, is_valid_subscription
from gnatswarm.broker.transform import TransformError
from gnatswarm.router.config import not_offered
from gnatswarm.router.config import option_values as values
from gnatswarm.router.config.conf_tree import Block, Entry, List, Node, Position, Problem, Scalar, plain, text_in
from gnatswarm.router.config.option_values import BareSeconds, Mistake
from gnatswarm.router.config.user_list import unknown_field

_EXPORT_KEYS = {
    "stream": "stream",
    "service": "service",
    "accounts": "accounts",
    "response": "response",
    "response_type": "response",
    "threshold": "threshold",
    "response_threshold": "threshold",
    "response_max_time": "threshold",
    "response_time": "threshold",
    "latency": "latency",
    "allow_trace": "trace",
    "account_token_position": "position",
    "token_req": "token",
    "token_required": "token",
}
_IMPORT_KEYS = {
    "stream": "stream",
    "service": "service",
    "prefix": "prefix",
    "to": "to",
    "share": "share",
    "allow_trace": "trace",
    "token": "token",
    "activation": "token",
}
_RESPONSES = {name: name for name in ("singleton", "stream", "chunked")} | {"single": "singleton", "chunk": "chunked"}
LONGEST_SUBJECT = 4096
# As on the real server.
DEFAULT_THRESHOLD_S = 120.0


class ImportsExportsBlock:
    """Reads both lists of the account `name`; errors go to `problems`, options without effect to `notices`."""

    def __init__(self, name: str, problems: list[Problem], notices: list[Problem]) -> None:
        self.name = name
        self._problems = problems
        self._notices = notices
        self.exports: list[tuple[Export, Position]] = []
        self.imports: list[tuple[Import, Position]] = []

    def read_exports(self, entry: Entry) -> None:
        """Reads `exports: [ {stream: …} {service: …} ]`."""
        for item in self._items(entry, "Exports", "Export"):
            self._export(item)

    def read_imports(self, entry: Entry) -> None:
        """Reads `imports: [ {stream: {account: …, subject: …}} … ]`."""
        for item in self._items(entry, "Imports", "Import"):
            self._import(item)

    def _items(self, entry: Entry, lists: str, one: str) -> list[Block]:
        found = entry.value
        if not isinstance(found, List):
            self._problem(entry.at, f"{lists} should be an array, got {found.kind}", "write [ { … } ]")
            return []
        blocks = []
        for item in found.items:
            if isinstance(item, Block):
                blocks.append(item)
            else:
                what = f"{one} Items should be a map with type entry, got {item.kind}"
                self._problem(item.at, what, "write {stream: …} or {service: …}")
        return blocks

    def _keys(self, block: Block, names: dict[str, str]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in block:
            name = names.get(entry.key.lower())
            if name is None:
                if not entry.used:
                    self._problems.append(unknown_field(entry, [*names]))
            elif entry.replaces is not None or name in found:
                self._problem(entry.at, f"{entry.key} is given again", "keep one")
            else:
                found[name] = entry
        return found

    def _kind(self, block: Block, keys: dict[str, Entry], what: str) -> tuple[Entry, bool] | None:
        """The entry `stream` or `service`, and whether it is a service; None after a problem."""
        stream, service = keys.get("stream"), keys.get("service")
        if stream is not None and service is not None:
            self._problem(service.at, f"{what} is a stream or a service, not both", "make two entries")
            return None
        if stream is None and service is None:
            self._problem(block.at, f"{what} of nothing", "add stream: … or service: …")
            return None
        return (service, True) if service is not None else (stream, False) if stream is not None else None

    def _export(self, block: Block) -> None:
        keys = self._keys(block, _EXPORT_KEYS)
        kind = self._kind(block, keys, "an export")
        if kind is None:
            return
        entry, is_service = kind
        word = "service" if is_service else "stream"
        subject = self._subject(entry.value, f"{word} name")
        accounts = self._accounts(keys["accounts"]) if "accounts" in keys else None
        response, threshold_s = self._answers(keys, is_service)
        latency_subject, latency_percent = self._latency(keys, is_service, response)
        allow_trace = self._allow_trace(keys, is_service, "non-service")
        position = self._position(keys["position"], subject) if "position" in keys else 0
        if "token" in keys:
            self._not_enforced(keys["token"])
        if subject:
            latency = latency_subject, latency_percent
            export = Export(
                subject,
                is_service,
                accounts,
                response,
                threshold_s,
                *latency,
                allow_trace,
                account_token_position=position,
            )
            self.exports.append((export, entry.at))

    def _position(self, entry: Entry, subject: str) -> int:
        """The number of the token, a *, that stands for the importing account; 0: none, or a problem."""
        value = entry.value.value if isinstance(entry.value, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int):
            what = f"{entry.key}: expected a number, not {entry.value.kind}"
            self._problem(entry.at, what, "write which * of the subject, counted in tokens from 1")
            return 0
        tokens = subject.split(".")
        if value != 0 and subject and not (1 <= value <= len(tokens) and tokens[value - 1] == "*"):
            what = f'{entry.key}: token {value} of "{subject}" is no *'
            self._problem(entry.at, what, "it stands for the importing account: write which token, from 1")
            return 0
        return value

    def _latency(self, keys: dict[str, Entry], is_service: bool, response: str) -> tuple[str, int]:
        """Where the latency of responses is published, and of how many percent of requests; "": nowhere."""
        if "latency" not in keys:
            return "", 100
        entry = keys["latency"]
        if not is_service:
            self._problem(entry.at, "latency is only for services", "remove it")
            return "", 100
        if response != "singleton":
            what = "Error adding service latency sampling: bad service response type"
            self._problem(entry.at, what, "it is measured until the only response; remove it")
            return "", 100
        if not isinstance(entry.value, Block):
            return self._latency_subject(entry), 100
        found = self._keys(entry.value, {"subject": "subject", "sampling": "sampling"})
        if "subject" not in found:
            self._problem(entry.at, "Latency subject required, but missing", "add subject: …")
            return "", 100
        percent = self._sampling(found["sampling"]) if "sampling" in found else 100
        return self._latency_subject(found["subject"]), percent

    def _latency_subject(self, entry: Entry) -> str:
        subject = self._subject(entry.value, "latency subject")
        if subject and not is_literal(_raw(subject)):
            what = f'Error adding service latency sampling on subject "{subject}": invalid publish subject'
            self._problem(entry.at, what, "write a subject without wildcards")
            return ""
        return subject

    def _sampling(self, entry: Entry) -> int:
        """Percent of the requests; 0: those that are traced."""
        value = entry.value.value if isinstance(entry.value, Scalar) else None
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if text.strip().lower() == "headers":
            return 0
        digits = text.strip().removesuffix("%")
        if not (digits.isascii() and digits.isdigit()):
            what = f"Failed to parse latency sample: {text or entry.value.kind}"
            self._problem(entry.at, what, "write 1 to 100 percent, or headers")
            return 100
        if not 1 <= int(digits[:4]) <= 100:
            self._problem(entry.at, "bad sampling percentage, should be 1-100", "to measure nothing, remove latency")
            return 100
        return int(digits)

    def _accounts(self, entry: Entry) -> tuple[str, ...]:
        if not isinstance(entry.value, List):
            self._problem(entry.at, f"Expected accounts to be an array, got {entry.value.kind}", "write [ A, B ]")
            return ()
        names = []
        for item in entry.value.items:
            name = text_in(item)
            if name is not None:
                names.append(name)
            else:
                self._problem(item.at, f"Expected an account name, got {item.kind}", "put it in quotes")
        return tuple(names)

    def _answers(self, keys: dict[str, Entry], is_service: bool) -> tuple[str, float]:
        response, threshold_s = "singleton", DEFAULT_THRESHOLD_S
        for name in ("response", "threshold"):
            if name in keys and not is_service:
                self._problem(keys[name].at, "Detected response directive on non-service", "remove it")
                return response, threshold_s
        if "response" in keys:
            word = self._text(keys["response"].value, "response type").lower()
            if word in _RESPONSES:
                response = _RESPONSES[word]
            elif word:
                self._problem(
                    keys["response"].at, f'Unknown response type: "{word}"', "write singleton, stream or chunked"
                )
        if "threshold" in keys:
            node = keys["threshold"].value
            try:
                threshold_s = values.duration_s(plain(node)) or threshold_s
            except (BareSeconds, Mistake) as mistake:
                got = f'"{node.value}"' if isinstance(node, Scalar) else node.kind
                what = f"Expected response threshold to be a parseable time duration, got {got}"
                advice = (
                    mistake.advice if isinstance(mistake, Mistake) else 'write it in quotes with a unit, as in "5s"'
                )
                self._problem(keys["threshold"].at, what, advice)
        return response, threshold_s

    def _import(self, block: Block) -> None:
        keys = self._keys(block, _IMPORT_KEYS)
        kind = self._kind(block, keys, "an import")
        if kind is None:
            return
        entry, is_service = kind
        word = "Service" if is_service else "Stream"
        if "token" in keys:
            self._not_enforced(keys["token"])
        if not isinstance(entry.value, Block):
            what = f"{word} entry should be an account map, got {entry.value.kind}"
            self._problem(entry.at, what, "write {account: A, subject: …}")
            return
        inner = self._keys(entry.value, {"account": "account", "subject": "subject"})
        if "account" not in inner or "subject" not in inner:
            self._problem(entry.at, "Expect an account name and a subject", "write {account: A, subject: …}")
            return
        account = self._text(inner["account"].value, "account name")
        subject = self._subject(inner["subject"].value, "subject")
        to = self._local_subject(keys, is_service, subject)
        share = self._share(keys["share"]) if "share" in keys else False
        allow_trace = self._allow_trace(keys, not is_service, "a non-stream")
        if account and subject and to:
            found = Import(account, subject, is_service, to, share and is_service, allow_trace)
            self.imports.append((found, entry.at))

    def _share(self, entry: Entry) -> bool:
        return self._switch(entry, "share")

    def _switch(self, entry: Entry, name: str) -> bool:
        value = entry.value.value if isinstance(entry.value, Scalar) else None
        if not isinstance(value, bool):
            self._problem(entry.at, f"Expected {name} to be a boolean, got {entry.value.kind}", "write true or false")
            return False
        return value

    def _local_subject(self, keys: dict[str, Entry], is_service: bool, subject: str) -> str:
        """The import's subject in the importing account; "" after a problem."""
        if "prefix" in keys and "to" in keys:
            self._problem(
                keys["prefix"].at, "Stream import can not have a 'prefix' and a 'to' property", "write one of them"
            )
            return ""
        if "prefix" in keys:
            prefix = self._text(keys["prefix"].value, "prefix")
            if is_service:
                self._problem(keys["prefix"].at, "a prefix is only for streams", f"write to: {prefix}.{subject}")
                return ""
            if prefix and not is_literal(prefix.removesuffix(".").encode("utf-8", "surrogateescape")):
                what = f'Error adding stream import "{subject}": stream import prefix can not contain wildcard tokens'
                self._problem(keys["prefix"].at, what, "write tokens separated by single dots")
                return ""
            entry, to = keys["prefix"], f"{prefix.removesuffix('.')}.{subject}" if prefix else ""
        elif "to" in keys:
            entry = keys["to"]
            to = self._text(entry.value, "to")
        else:
            return subject
        if not to or not subject:
            return subject if not to else ""
        try:
            check = local_service_pattern if is_service else local_pattern
            check(subject.encode("utf-8", "surrogateescape"), to.encode("utf-8", "surrogateescape"))
        except TransformError as error:
            kind = "service" if is_service else "stream"
            what = f'Error adding {kind} import "{subject}" as "{to}": {error}'
            advice = "write $1 for what the first * of the subject stands for"
            self._problem(entry.at, what, advice if "to" in keys else "write a prefix without $1 and the like")
            return ""
        return to

    def _text(self, node: Node, name: str) -> str:
        found = text_in(node)
        if found is not None:
            return found
        self._problem(node.at, f"Expected {name} to be string, got {node.kind}", "put it in quotes")
        return ""

    def _subject(self, node: Node, name: str) -> str:
        text = self._text(node, name)
        raw = text.encode("utf-8", "surrogateescape")
        if text and (len(raw) > LONGEST_SUBJECT or any(c.isspace() for c in text) or not is_valid_subscription(raw)):
            self._problem(
                node.at, f'subject "{text[:80]}" is not a valid subject', "tokens are separated by single dots"
            )
            return ""
        return text

    def _allow_trace(self, keys: dict[str, Entry], may: bool, where: str) -> bool:
        if "trace" not in keys:
            return False
        if not may:
            what = f"Detected allow_trace directive on {where}"
            self._problem(keys["trace"].at, what, "it belongs to exports of services and to imports of streams")
            return False
        return self._switch(keys["trace"], "allow_trace")

    def _not_enforced(self, entry: Entry) -> None:
        what = f'"{entry.key}": {not_offered.RESTRICTS_IN_EXCHANGE[entry.key.lower()]} are not offered by this version'
        self._problem(entry.at, what, "name the accounts that may import it, in the export's accounts")

    def _problem(self, at: Position, what: str, advice: str) -> None:
        self._problems.append(Problem(at, what, advice))

    def _notice(self, at: Position, what: str, advice: str) -> None:
        self._notices.append(Problem(at, what, advice))


def _raw(subject: str) -> bytes:
    return subject.encode("utf-8", "surrogateescape")
