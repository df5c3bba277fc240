"""`make fuzz`: each target of tests/fuzz/targets for some seconds, guided by coverage where that is possible.

With atheris (on the build for fuzzing, GNATSWARM_FUZZ=1) inputs that reach new branches are kept in build/fuzz/corpus,
and a failing one in build/fuzz/found. Without atheris the kept inputs are changed at random. Prints one line for each
target: inputs tried, branches reached ("edges"), distinct counts of them ("features"), inputs kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing.pool
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.programs import mutated
from tests.fuzz.targets import COMPILED, CORPUS, MOST_BYTES, TARGETS, check_of, kept, words_of

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "fuzz"
LIBRARY = BUILD / "lib"
# An input that takes longer is a finding; the slowest so far take a tenth of a second.
HANGS_S = 20
MOST_MIB = 3000
SHOWN = "{:<18} {:>10} {:>7} {:>9} {:>7}  {}"


@dataclass(frozen=True)
class Result:
    """The result of one target's run."""

    target: str
    tried: int
    edges: int
    features: int
    inputs: int
    failure: str = ""  # the failing input's place and the end of the report

    def __str__(self) -> str:
        return SHOWN.format(
            self.target, f"{self.tried:,}", self.edges or "-", self.features or "-", self.inputs, self.failure or "ok"
        )


def main() -> int:
    """The exit code: 1 where an input failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--processes", type=int, default=2, help="so many targets at the same time")
    parser.add_argument("--minimise", action="store_true", help="afterwards keep the fewest inputs with all branches")
    words = parser.parse_args()
    if unknown := set(words.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    targets = words.targets or list(TARGETS)
    why_not = {target: unguided(target) for target in targets}
    for reason in sorted(set(filter(None, why_not.values()))):
        print(f"not guided by coverage: {reason}")

    def run(target: str) -> Result:
        return (at_random if why_not[target] else guided)(target, words.seconds)

    BUILD.mkdir(parents=True, exist_ok=True)
    for (
        target
    ) in targets:  # before threads start: a program that is still open for writing elsewhere cannot be executed
        if not why_not[target]:
            write_program(target)
    print(SHOWN.format("target", "inputs", "edges", "features", "kept", ""))
    failed = False
    with multiprocessing.pool.ThreadPool(max(words.processes, 1)) as pool:
        for result in pool.imap(run, targets):
            failed |= bool(result.failure)
            print(result, flush=True)
    for target in targets:
        if words.minimise and not why_not[target]:
            print(f"{target}: {minimise(target)} inputs in {CORPUS / target}")
    return int(failed)


def unguided(target: str) -> str:
    """Why coverage cannot guide the inputs of this target; "": it can."""
    if importlib.util.find_spec("atheris") is None:
        return "atheris is not installed"
    if target in COMPILED and not any(LIBRARY.rglob("*.so")):
        return f"{LIBRARY} has no build for fuzzing"
    return ""


def guided(target: str, seconds: int) -> Result:
    """A run of libFuzzer in a process of its own."""
    grown, found = BUILD / "corpus" / target, BUILD / "found"
    grown.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    flags = [f"-max_total_time={seconds}", f"-timeout={HANGS_S}", f"-rss_limit_mb={MOST_MIB}"]
    flags += [f"-max_len={MOST_BYTES}", f"-artifact_prefix={found}/{target}-", "-print_final_stats=1"]
    if words := words_of(target):
        dictionary = BUILD / f"{target}.dict"
        quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
        dictionary.write_text("".join(f'"{word}"\n' for word in quoted))
        flags.append(f"-dict={dictionary}")
    log = BUILD / f"{target}.log"
    with log.open("wb") as file:
        done = subprocess.run([BUILD / target, *flags, grown, CORPUS / target], stdout=file, stderr=file)
    text = log.read_text("utf-8", "replace")
    tried = re.findall(r"^#(\d+)|^stat::number_of_executed_units:\s*(\d+)", text, re.MULTILINE)
    states = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    edges, features, inputs = (int(number) for number in states[-1]) if states else (0, 0, 0)
    failure = ""
    if done.returncode:
        places = re.findall(r"Test unit written to (\S+)", text)
        lines = [line for line in text.splitlines() if not line.startswith(("#", "INFO", "artifact_prefix", "Base64"))]
        failure = "\n".join([f"FAILED: {', '.join(places) or f'exit code {done.returncode}'}", *lines[-25:]])
    return Result(target, max((int(a or b) for a, b in tried), default=0), edges, features, inputs, failure)


def write_program(target: str) -> None:
    """Write the program that runs the target under libFuzzer, which starts it again to merge directories."""
    path = BUILD / target
    packages = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"GNATSWARM_FUZZ_WRAPPER": str(path), "PYTHONPATH": os.pathsep.join(packages)}
    if target in COMPILED:
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
        asan = subprocess.check_output([*shlex.split(compiler), "-print-file-name=libasan.so"], text=True).strip()
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(LIBRARY), *packages]),
            "PYTHONMALLOC": "malloc",  # AddressSanitizer sees every object
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks by design
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "LD_PRELOAD": asan,
        }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    command = shlex.join([sys.executable, "-P", "-m", "tests.fuzz.guided", target])
    path.write_text(f'#!/bin/sh\n{exports}exec nice {command} "$@"\n')
    path.chmod(0o755)


def minimise(target: str) -> int:
    """Keep the fewest known inputs that reach every branch, and all that have a name; returns how many."""
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        chosen = Path(directory)
        flags = ["-set_cover_merge=1", f"-timeout={HANGS_S}", f"-max_len={MOST_BYTES}"]
        subprocess.run(
            [BUILD / target, *flags, chosen, BUILD / "corpus" / target, CORPUS / target],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        named = {path.read_bytes() for path in kept(target) if not is_number(path.name)}
        for path in kept(target):
            if is_number(path.name):
                path.unlink()
        for path in chosen.iterdir():
            if path.read_bytes() not in named:
                shutil.copyfile(path, CORPUS / target / path.name[:12])
    return len(kept(target))


def is_number(name: str) -> bool:
    """Whether this is a name that libFuzzer gave."""
    return re.fullmatch(r"[0-9a-f]{12,40}", name) is not None


def at_random(target: str, seconds: float) -> Result:
    """Try changed copies of kept inputs, whatever branches they reach."""
    check = check_of(target)
    inputs = [path.read_bytes() for path in kept(target)]
    rng = random.SystemRandom()
    tried = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        data = mutated(rng, rng.choice(inputs))[:MOST_BYTES]
        tried += 1
        try:
            check(data)
        except Exception:
            found = BUILD / "found"
            found.mkdir(parents=True, exist_ok=True)
            path = found / f"{target}-{tried}"
            path.write_bytes(data)
            return Result(target, tried, 0, 0, len(inputs), f"FAILED: {path}\n{traceback.format_exc()}")
    return Result(target, tried, 0, 0, len(inputs))


if __name__ == "__main__":
    sys.exit(main())
