"""Writes deploy/man/*.1 from the help of gnatswarm and of each command: `make reference`. A test compares them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.cli import COMMANDS
from gnatswarm.router.config.help import COMMANDS as WITH_TEXT
from gnatswarm.router.config.help import command_help_text, help_text

DIRECTORY = Path(__file__).with_name("man")
WITHOUT_PAGE = ("help", "version")
# Somebody's home, which defaults in help texts contain.
HOME = "/HOME"
HELP_DEADLINE_S = 120.0
COLUMNS = 100

# A flag, or a word to write, at the beginning of a line; two blanks, or the next line, before what it means.
_ENTRY = re.compile(r"^( {2,})(\S.*?)(?: {2,}(\S.*))?$")
_ONE_BLANK = re.compile(r"^( +-[^<]*<\w+>) (?=[a-z])")
_HEADING = re.compile(r"^([A-Za-z][^:(]*?)(?: \((.*)\))?:$")


def pages() -> dict[str, str]:
    """Each file's name and text."""
    names = [command for command in COMMANDS if command not in WITHOUT_PAGE]
    found = {"gnatswarm.1": page("gnatswarm", help_text("gnatswarm"), names)}
    for command in names:
        found[f"gnatswarm-{command}.1"] = page(f"gnatswarm-{command}", _help_of(command), ["gnatswarm"])
    return found


def _help_of(command: str) -> str:
    if command in WITH_TEXT:
        return command_help_text(command, "gnatswarm")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_", "GNATSWARM_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gnatswarm", command, "-h"],
        capture_output=True,
        text=True,
        env=kept | {"HOME": HOME, "COLUMNS": str(COLUMNS)},
        timeout=HELP_DEADLINE_S,
        check=True,
    )
    return done.stdout.replace(HOME, "~")


def page(name: str, text: str, related: list[str]) -> str:
    """A help text as a page of section 1."""
    synopsis, summary, rest = _parts(text)
    see = [one if one == "gnatswarm" else f"gnatswarm-{one}" for one in related]
    lines = [
        rf".\" Written by `make reference` from `{name.replace('-', ' ', 1)} -h`.",
        f'.TH {name.upper()} 1 "" "gnatswarm {OWN_VERSION}" "gnatswarm"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(summary)}",
        ".SH SYNOPSIS",
        ".nf",
        *(_text(line) for line in synopsis),
        ".fi",
        *_body(rest),
        ".SH SEE ALSO",
        *(f".BR {_escaped(one)} (1)" + ("," if one != see[-1] else "") for one in see),
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _parts(text: str) -> tuple[list[str], str, list[str]]:
    """(lines of the synopsis, the summary for NAME, all other lines)."""
    lines = text.rstrip("\n").split("\n")
    if lines[0].startswith("gnatswarm: "):  # the program's own: its first line says what it is
        return ["gnatswarm [flags] [command]"], lines[0].partition(": ")[2].rstrip("."), lines[1:]
    end = lines.index("")
    synopsis = [line.removeprefix("usage: ").strip() for line in lines[:end]]
    rest = lines[end + 1 :]
    paragraph = " ".join(line.strip() for line in rest[: rest.index("") if "" in rest else None])
    summary = re.split(r"(?<=[.:;]) |: ", paragraph)[0].rstrip(".:;")
    return synopsis, summary, rest


def _body(lines: list[str]) -> Iterator[str]:
    column = 0  # where an entry's meaning goes on; 0: there is no entry
    is_literal = False
    if not _HEADING.match(next(line for line in lines if line)):
        yield ".SH DESCRIPTION"
    for i, line in enumerate(lines):
        line = _ONE_BLANK.sub(r"\1  ", line)
        heading = _HEADING.match(line)
        entry = _ENTRY.match(line)
        if not line:
            column = 0
            if is_literal and i + 1 < len(lines) and not lines[i + 1].startswith(" "):
                is_literal = False
                yield ".fi"
            if i + 1 < len(lines) and not _HEADING.match(lines[i + 1]):
                yield ".PP"
        elif heading:
            if is_literal:
                yield ".fi"
            is_literal = heading[1].lower() == "examples"
            yield f'.SH "{_escaped(heading[1].upper())}"'
            if heading[2]:
                yield _text(heading[2][0].upper() + heading[2][1:] + ".")
            if is_literal:
                yield ".nf"
        elif is_literal:
            yield _text(line)
        elif entry is None:
            column = 0
            yield _text(line)
        elif column and len(entry[1]) >= column - 2:
            if len(entry[1]) > column:  # a list of its own
                yield ".br"
            yield _text(line)
        else:
            after = lines[i + 1] if i + 1 < len(lines) else ""  # where the meaning begins, or goes on
            column = line.index(entry[3], len(entry[1] + entry[2])) if entry[3] else len(after) - len(after.lstrip())
            yield ".TP"
            yield f"\\fB{_text(entry[2])}\\fR"
            if entry[3]:
                yield _text(entry[3])
    if is_literal:
        yield ".fi"


def _text(line: str) -> str:
    """A line of text, which is no request even if it begins like one."""
    found = _escaped(line.strip())
    return rf"\&{found}" if found[:1] in (".", "'") else found


def _escaped(text: str) -> str:
    found = text.replace("\\", r"\e").replace("-", r"\-").replace("`", r"\(ga").replace("'", r"\(aq")
    found = found.replace("^", r"\(ha").replace("~", r"\(ti").replace('"', r"\(dq")
    return "".join(sign if sign.isascii() else rf"\[u{ord(sign):04X}]" for sign in found)


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    written = pages()
    for old in DIRECTORY.glob("*.1"):
        if old.name not in written:
            old.unlink()
    for file, text in written.items():
        (DIRECTORY / file).write_text(text, encoding="ascii")
    print(f"{DIRECTORY} has {len(written)} pages")
