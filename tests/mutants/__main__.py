"""Put deliberate faults into a copy of the code, one at a time, and see which tests fail.

`python -P -m tests.mutants` runs those that have no result yet, and writes tests/mutants/results.json and results.md
after each. The exit code is 1 where a fault that changes behaviour is not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from types import FrameType

from tests.mutants.faults import HERE, Fault, faults
from tests.mutants.tree import DoesNotBuild, NoTests, Tree

RESULTS = HERE / "results.json"
TABLE = HERE / "results.md"
SEEN, NOT_SEEN, NO_BUILD, EQUIVALENT, UNCLEAR = "seen", "not seen", "does not build", "equivalent", "unclear"

# Where more fail without the fault too, it is not they that are wrong.
MOST_UNFIT = 3

Results = dict[str, dict[str, str]]


def outcome(tree: Tree, fault: Fault) -> dict[str, str]:
    """What became of one fault."""
    if fault.equivalent:
        return {"outcome": EQUIVALENT, "by": fault.equivalent}
    unfit: list[str] = []  # tests that fail without the fault too: the others may see it
    while len(unfit) < MOST_UNFIT:
        try:
            tree.put(fault)
            test = tree.seen_by(fault, unfit)
        except NoTests as error:
            return {"outcome": UNCLEAR, "by": str(error)}
        except DoesNotBuild as error:
            return {"outcome": NO_BUILD, "by": str(error).strip().splitlines()[-1]}
        finally:
            tree.restore(fault)
        if test is None:
            break
        if "::" not in test or tree.passes_without(test, fault):
            return {"outcome": SEEN, "by": test}
        unfit.append(test)
    if unfit:
        return {"outcome": UNCLEAR, "by": f"{', '.join(unfit)}: without the fault too"}
    return {"outcome": NOT_SEEN, "by": ""}


def recorded() -> Results:
    """What earlier runs found."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def is_current(fault: Fault, results: Results) -> bool:
    """Has this very fault, with these very tests, a result?"""
    return results.get(fault.name, {}).get("fault") == fault.digest


def cost(fault: Fault) -> tuple[bool, bool, bool]:
    """What is quick comes first: tests within one process, and Python, which needs no compiler."""
    is_slow = any(test.startswith(("tests/system", "tests/spark")) or "_cli_" in test for test in fault.tests)
    return is_slow, fault.simulation > 0, fault.is_compiled


def write(results: Results) -> None:
    """Write both files, in the order of the faults."""
    known = [fault for fault in faults() if fault.name in results]
    RESULTS.write_text(json.dumps({fault.name: results[fault.name] for fault in known}, indent=1) + "\n")
    TABLE.write_text(table(known, results))


def counts(known: list[Fault], results: Results) -> dict[str, int]:
    """How many there are of each outcome."""
    outcomes = [results[fault.name]["outcome"] for fault in known]
    return {name: outcomes.count(name) for name in (SEEN, NOT_SEEN, EQUIVALENT, NO_BUILD, UNCLEAR)}


def table(known: list[Fault], results: Results) -> str:
    """The results as a page."""
    lines = [
        "# Deliberate faults, and what saw them",
        "",
        "Written by `make mutants`; [README.md](README.md) says what this is. *Blind*: chosen before tests were read.",
        "",
        "| faults | " + " | ".join((SEEN, NOT_SEEN, EQUIVALENT, NO_BUILD, UNCLEAR)) + " |",
        "|---|" + "--:|" * 5,
    ]
    groups = {"all": known, "blind": [fault for fault in known if fault.chosen_blind]}
    for area in ("broker", "shards", "router", "spark"):
        groups[f"`{area}/`"] = [fault for fault in known if fault.file.startswith(area + "/")]
    for name, group in groups.items():
        numbers = counts(group, results).values()
        lines.append(f"| {name}: {len(group)} | " + " | ".join(str(number) for number in numbers) + " |")
    lines += ["", "| fault | file | what it breaks | blind | outcome | seen by, or why not |", "|---|" + "---|" * 5]
    for fault in known:
        result = results[fault.name]
        by = result["by"].replace("|", "\\|")
        by = f"`{by}`" if result["outcome"] == SEEN else by
        blind = "yes" if fault.chosen_blind else ""
        lines.append(
            f"| {fault.name} | `{fault.file}` | {fault.promise.replace('|', chr(92) + '|')} | {blind} | "
            f"{result['outcome']} | {by} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these, also if they have a result (a part of a name)")
    parser.add_argument("--list", action="store_true", help="print the faults and their results, and run nothing")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--jobs", type=int, default=1, help="scratch copies at work (1)")
    words = parser.parse_args()
    results = recorded()
    wanted = [fault for fault in faults() if not words.names or any(name in fault.name for name in words.names)]
    if words.list:
        for fault in wanted:
            result = results.get(fault.name, {"outcome": "no result yet", "by": ""})
            print(f"{fault.name:<50} {result['outcome']:<14} {result['by']}")
        return 0
    if not (words.again or words.names):
        wanted = [fault for fault in wanted if not is_current(fault, results)]
    wanted.sort(key=cost)
    left: SimpleQueue[Fault | None] = SimpleQueue()
    for next_one in [*wanted, *[None] * words.jobs]:
        left.put(next_one)
    writing = Lock()
    trees: list[Tree] = []

    def end(number: int, _frame: FrameType | None) -> None:
        for tree in trees:
            tree.kill()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)

    def work(number: int) -> None:
        tree = Tree(number)
        trees.append(tree)
        while fault := left.get():
            result = outcome(tree, fault) | {"fault": fault.digest}
            with writing:
                results[fault.name] = result
                write(results)
                print(f"{fault.name:<50} {result['outcome']:<14} {result['by']}", flush=True)

    if wanted:
        with ThreadPoolExecutor(words.jobs) as jobs:
            list(jobs.map(work, range(words.jobs)))
    known = [fault for fault in faults() if is_current(fault, results)]
    totals = counts(known, results)
    print(", ".join(f"{number} {name}" for name, number in totals.items()))
    return int(any(totals[name] for name in (NOT_SEEN, NO_BUILD, UNCLEAR)))


if __name__ == "__main__":
    sys.exit(main())
