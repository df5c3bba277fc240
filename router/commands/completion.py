"""`gnatswarm completion bash|zsh|fish`: a script that completes commands, flags and some values in that shell.

The flags of each command are read from its help text, so that none can be missing; commands that are programs of their
own print it, one after the other in this process: started for it, each would read its modules anew, a second in all.
The script itself starts nothing.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence

from gnatswarm.router.config.flags import FLAGS
from gnatswarm.router.config.help import COMMANDS as WITH_TEXT
from gnatswarm.router.config.help import command_help_text

SHELLS = ("bash", "zsh", "fish")

# What may follow a flag, where it is neither a file nor free text.
VALUES = {
    "--accept": ("reuseport", "handoff"),
    "--compatibility": ("2.9", "2.15"),
    "--log_format": ("text", "json"),
    "--signal": ("stop", "quit", "term", "reload", "reopen", "ldm"),
    "-sl": ("stop", "quit", "term", "reload", "reopen", "ldm"),
}
# A flag at the beginning of a line of a help text, or behind another one and a comma.
_FLAG = re.compile(r"(?:^\s+|, )(--?[A-Za-z][\w-]*)", re.MULTILINE)


def completion(shell: str, commands: Sequence[str], programs: Mapping[str, Sequence[str]]) -> str:
    """The script for this shell (one of SHELLS); `commands` are all commands, `programs` print the help of some."""
    named = [command for command in commands if command not in ("help", "version")]
    flags = {command: _flags_of(command, programs.get(command, ())) for command in named}
    flags["completion"] = []
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands, flags)


def _flags_of(command: str, program: Sequence[str]) -> list[str]:
    """The flags that the help of this command names, sorted; `program` prints it where the command is one."""
    text = command_help_text(command, "gnatswarm") if command in WITH_TEXT else _printed(*program)
    return sorted(set(_FLAG.findall(text)))


def _printed(module: str, *words: str) -> str:
    """What this module prints as a program with these words."""
    before, sys.argv = sys.argv, [module, *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__")
    finally:
        sys.argv = before
    return text.getvalue()


def _flags_of_a_start(kinds: tuple[type, ...] = (bool, int, str)) -> list[str]:
    found = {
        f"-{name}" if len(name) <= 2 or name.isupper() else f"--{name}"
        for flag in FLAGS
        if flag.kind in kinds
        for name in flag.names
    }
    return sorted(found)


def _before_files() -> list[str]:
    """Flags of a start whose value is a file, or nothing that a shell knows."""
    return [flag for flag in _flags_of_a_start((int, str)) if flag not in VALUES]


def _bash(commands: Sequence[str], flags: dict[str, list[str]]) -> str:
    of_commands = "\n".join(f'    {name}) words="{" ".join(found)}" ;;' for name, found in flags.items())
    values = "\n".join(f'    {flag}) words="{" ".join(found)}" ;;' for flag, found in VALUES.items())
    shells = " ".join(SHELLS)
    return f"""\
# bash completion for gnatswarm: put this into ~/.local/share/bash-completion/completions/gnatswarm, or type
#   source <(gnatswarm completion bash)
_gnatswarm() {{
  local here="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " {" ".join(commands)} " in *" $word "*) command="$word"; break ;; esac
  done
  case "$before" in
{values}
    completion) words="{shells}" ;;
  esac
  if [ -z "$command" ]; then
    case "$before" in {"|".join(_before_files())}) COMPREPLY=(); return ;; esac
  fi
  if [ -z "$words" ]; then
    case "$command" in
    "") words="{" ".join((*commands, *_flags_of_a_start()))}" ;;
{of_commands}
    esac
    # A word that is no flag may be a file: readline completes it.
    if [ -n "$command" ] && [ "${{here#-}}" = "$here" ]; then words=""; fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$here"))
}}
complete -o default -F _gnatswarm gnatswarm
"""


def _zsh(commands: Sequence[str], flags: dict[str, list[str]]) -> str:
    of_commands = "\n".join(f"    {name}) offered=({' '.join(found)}) ;;" for name, found in flags.items())
    values = "\n".join(f"    {flag}) offered=({' '.join(found)}) ;;" for flag, found in VALUES.items())
    return f"""\
#compdef gnatswarm
# zsh completion for gnatswarm: put this into a directory of $fpath as _gnatswarm, or type, after compinit,
#   source <(gnatswarm completion zsh)
_gnatswarm() {{
  local word command=""
  local -a offered
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$word" in ({"|".join(commands)}) command="$word"; break ;; esac
  done
  case "${{words[CURRENT-1]}}" in
{values}
    completion) offered=({" ".join(SHELLS)}) ;;
  esac
  if [[ -z "$command" ]]; then
    case "${{words[CURRENT-1]}}" in ({"|".join(_before_files())}) _files; return ;; esac
  fi
  if (( ! $#offered )); then
    case "$command" in
    "") offered=({" ".join((*commands, *_flags_of_a_start()))}) ;;
{of_commands}
    esac
    # A word that is no flag may be a file.
    if [[ -n "$command" && "${{words[CURRENT]}}" != -* ]]; then offered=(); fi
  fi
  (( $#offered )) && compadd -- "${{(@)offered}}" || _files
}}
# Called as a function of $fpath, or sourced.
if [[ "${{funcstack[1]}}" == _gnatswarm ]]; then _gnatswarm "$@"; else compdef _gnatswarm gnatswarm; fi
"""


def _fish(commands: Sequence[str], flags: dict[str, list[str]]) -> str:
    lines = ["# fish completion for gnatswarm: gnatswarm completion fish > ~/.config/fish/completions/gnatswarm.fish"]
    first = "not __fish_seen_subcommand_from " + " ".join(commands)
    lines.append(f"complete -c gnatswarm -n '{first}' -a '{' '.join(commands)}'")
    with_value = _before_files()
    lines += [_fish_flag(flag, first) + (" -r -F" if flag in with_value else "") for flag in _flags_of_a_start()]
    for command, found in flags.items():
        lines += [_fish_flag(flag, f"__fish_seen_subcommand_from {command}") for flag in found]
    lines.append(f"complete -c gnatswarm -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str, when: str) -> str:
    bare = flag.lstrip("-")
    kind = "-l" if flag.startswith("--") else "-s" if len(bare) == 1 else "-o"
    return f"complete -c gnatswarm -n '{when}' {kind} {bare}{_fish_values(VALUES.get(flag, ()))}"


def _fish_values(values: Iterable[str]) -> str:
    joined = " ".join(values)
    return f" -x -a '{joined}'" if joined else ""
