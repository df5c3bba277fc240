"""Where a process is: the Python stacks of its threads and tasks, and what the kernel says of its threads.

For /stacksz, of nats-server's name: for people who look for the place at which a process hangs. File names, lines and
function names only, no values, so that no secret is in it. Compiled modules have no frames in a Python stack; for them,
and for a process that does not answer, there is the kernel's view: state, system call, and where the kernel waits.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from pathlib import Path

# Of each kind; a broker has some ten of both. A task belongs to a request, and their number is limited elsewhere.
MOST_THREADS = 64
MOST_TASKS = 256
MOST_FRAMES = 64


def stacks_text() -> str:
    """The stacks of this process: one paragraph for each thread, then one for each waiting task of the running loop."""
    names = {thread.ident: (thread.name, thread.native_id) for thread in threading.enumerate()}
    texts = []
    for ident, frame in list(sys._current_frames().items())[:MOST_THREADS]:
        name, native_id = names.get(ident, ("?", None))
        texts.append(f"thread {native_id} [{name}]:\n{_lines(traceback.extract_stack(frame, MOST_FRAMES))}")
    try:
        tasks = list(asyncio.all_tasks())
    except RuntimeError:  # no loop runs in this thread
        tasks = []
    present = asyncio.current_task() if tasks else None
    for task in tasks[:MOST_TASKS]:
        if task is not present:  # it is in its thread's stack
            frames = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in task.get_stack())
            texts.append(f"task {task.get_name()} [waiting]:\n{_lines(frames)}")
    return "\n".join(texts)


def kernel_text(pid: int) -> str:
    """What the kernel says of the threads of a process of ours: a line for each. Empty: it has ended."""
    lines = []
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return ""
    for thread in threads[:MOST_THREADS]:
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended meanwhile
            continue
        waits_in, call = _read(thread / "wchan"), _read(thread / "syscall").partition(" ")[0]
        found = [f"state {state}"]
        found += [f"system call {call}"] if call.isdigit() else []
        found += [f"in {waits_in}"] if waits_in not in ("", "0") else []
        lines.append(f"thread {thread.name} [kernel]: {', '.join(found)}\n")
    return "".join(lines)


def _lines(stack: traceback.StackSummary) -> str:
    """The innermost frame first, as nats-server's runtime writes it."""
    return "".join(f"{frame.name}()\n\t{frame.filename}:{frame.lineno}\n" for frame in reversed(stack))


def _read(path: Path) -> str:
    """A file that the kernel may keep from us; "": it does."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
