"""The Python stacks of a process's threads and tasks, and the state of its threads in the kernel.

For the page /stacksz, which helps to find where a process hangs. The text has file names, line numbers and function
names, but no values, and so no secrets. Compiled modules have no frames in a Python stack; for them, and for a process
that does not answer, the kernel's view is shown: state, system call, and where in the kernel the thread waits.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from pathlib import Path

# At most so many threads, and tasks; a broker has some ten. A task belongs to a request, and requests are limited.
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
        if task is not present:  # its frames are in its thread's stack
            frames = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in task.get_stack())
            texts.append(f"task {task.get_name()} [waiting]:\n{_lines(frames)}")
    return "\n".join(texts)


def kernel_text(pid: int) -> str:
    """The state of this process's threads in the kernel, a line for each; "": the process has ended."""
    lines = []
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    except OSError:
        return ""
    for thread in threads[:MOST_THREADS]:
        try:
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # the thread has ended meanwhile
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
    """The content of a file of /proc; "": we may not read it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
