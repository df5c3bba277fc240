"""The first seed that finds each of some deliberate faults: `python -P -m tests.simulation.finds NAME…`.

The faults are those of tests/mutants, put into a scratch copy one at a time. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.mutants.faults import faults
from tests.mutants.tree import DoesNotBuild, Tree

# Not that of a copy in which the mutants' own command works.
TREE = 100
RUN = """
import sys
from tests.simulation.hunt import collecting_seldom, failure
from tests.simulation.schedule import drawn
with collecting_seldom() as collect:
    for seed in range(int(sys.argv[1])):
        if failure(drawn(seed))[0]:
            print(seed)
            break
        collect()
"""


def first_seed(tree: Tree, most: int) -> str:
    """The first of so many seeds that fails; "": none does. "crash": the process dies."""
    command = [sys.executable, "-P", "-c", RUN, str(most)]
    done = subprocess.run(command, cwd=tree.root, env=tree.environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "crash"


def main() -> None:
    """Prints a row as soon as it is known."""
    parser = argparse.ArgumentParser(prog="python -P -m tests.simulation.finds", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="a fault of tests/mutants")
    parser.add_argument("--most", type=int, default=3000, help="seeds that are tried (3000)")
    words = parser.parse_args()
    known = {fault.name: fault for fault in faults()}
    tree = Tree(TREE)
    print("| fault | what does not hold | seed |\n|---|---|---:|", flush=True)
    for name in words.names:
        fault = known[name]
        try:
            tree.put(fault)
            seed = first_seed(tree, words.most)
        except DoesNotBuild:
            seed = "does not build"
        finally:
            tree.restore(fault)
        print(f"| {name} | {fault.promise} | {seed or f'**not within {words.most:,}**'} |", flush=True)


if __name__ == "__main__":
    main()
