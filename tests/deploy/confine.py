"""Runs a command as a unit file confines it, by the kernel's own means: `confine.py UNIT WRITABLE… -- COMMAND…`.

systemd is not running where tests run, but what it would ask of the kernel can be asked for here: no new privileges, no
capabilities, the system calls of SystemCallFilter= (systemd says which those are), the families of
RestrictAddressFamilies=, no memory that can be written and executed, and a file system that is read-only but for the
directories named. What of it the kernel or the user does not allow is said on standard error, as `not confined: …`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

# Run as a program: its own folder comes first on the path.
from unit_file import UnitFile  # type: ignore[import-not-found]

PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_SET_SECCOMP = 22
PR_SET_MDWE = 65
CLONE_NEWNS = 0x20000

LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | 1  # EPERM
KILL = 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def system_call_sets() -> dict[str, list[str]]:
    """Systemd's own: @group → names and groups."""
    text = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    sets: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("@"):
            current = line.strip()
            sets[current] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            sets[current].append(line.strip())
    return sets


def expanded(words: list[str], sets: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    for word in words:
        found |= expanded(sets[word], sets) if word.startswith("@") else {word}
    return found


def allowed_calls(values: list[str]) -> set[str]:
    """The system calls that SystemCallFilter= lines allow; lines with ~ remove some."""
    sets = system_call_sets()
    allowed: set[str] = set()
    for value in values:
        words = value.lstrip("~").split()
        if value.startswith("~"):
            allowed -= expanded(words, sets)
        else:
            allowed |= expanded(words, sets)
    return allowed | {"execve"}  # the one by which we become the command


def call_numbers() -> dict[str, int]:
    """The system call numbers of this machine, from the C library's headers."""
    text = subprocess.run(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}


def filter_program(allowed: set[str], families: list[str]) -> bytes:
    numbers = call_numbers()
    code: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, 4)]  # the architecture
    code += [(JUMP_EQUAL, 1, 0, ARCHITECTURES[platform.machine()]), (RETURN, 0, 0, KILL)]
    code.append((LOAD, 0, 0, 0))  # the number
    code.append((JUMP_EQUAL, 0, 2 + 2 * len(families), numbers["socket"]))
    code.append((LOAD, 0, 0, 16))  # its first argument
    for family in families:
        code += [(JUMP_EQUAL, 0, 1, int(getattr(socket, family))), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, 0x00050000 | 97))  # EAFNOSUPPORT, as systemd has it
    for name in sorted(allowed):
        if name in numbers and name != "socket":
            code += [(JUMP_EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, FAIL))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def make_read_only(writable: list[str]) -> None:
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["mount", "--make-rprivate", "/"], **quiet)  # type: ignore[call-overload]
    for directory in writable:
        subprocess.run(["mount", "--bind", directory, directory], **quiet)  # type: ignore[call-overload]
    subprocess.run(["mount", "-o", "remount,bind,ro", "/"], **quiet)  # type: ignore[call-overload]


def main(arguments: list[str]) -> None:
    unit = UnitFile(Path(arguments[0]))
    split = arguments.index("--")
    writable, command = arguments[1:split], arguments[split + 1 :]
    program = filter_program(allowed_calls(unit.settings["SystemCallFilter"]), unit.words("RestrictAddressFamilies"))
    try:
        make_read_only(writable)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not confined: ProtectSystem ({error})", file=sys.stderr)
    assert unit.one("CapabilityBoundingSet") == ""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break
    assert unit.one("NoNewPrivileges") == "yes"
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if unit.one("MemoryDenyWriteExecute") == "yes":
        try:
            prctl(PR_SET_MDWE, 1)
        except OSError as error:
            print(f"not confined: MemoryDenyWriteExecute ({error})", file=sys.stderr)
    held = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(described))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
