"""A headless Chromium, controlled over its debugging pipe: opens pages, evaluates scripts, types, takes screenshots.

No driver and no library: Chromium reads and writes JSON messages that end in a NUL byte on its descriptors 3 and 4.
Synchronous; every wait has a deadline. The browser dies with the test run and gets a profile of its own.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The path of the program, if it is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. TimeoutError, AssertionError: neither of two starts answered."""

    def __init__(self, program: str) -> None:
        self._session = ""
        self._last_id = 0
        self.errors: list[str] = []  # errors of the page's scripts
        self._start(program)
        try:
            self._open_page()
        except (TimeoutError, AssertionError):
            # Of some thousand starts on busy machines one never answered. Once it has, nothing is tried again.
            self.close()
            self._session = ""
            self._start(program)
            self._open_page()

    def _start(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="gnatswarm-browser-")
        self._buffer = b""
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        # The pipes must not lie on 3 and 4 themselves when they are moved there.
        high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 5) for fd in (theirs_in, theirs_out))

        def arrange() -> None:
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        try:
            self._process = subprocess.Popen(
                [program, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # It leaves its lock behind when it is killed.
                env={**os.environ, "TMPDIR": self._profile},
                preexec_fn=arrange,
                pass_fds=(3, 4),
                start_new_session=True,
            )
        finally:
            for descriptor in (theirs_in, theirs_out, high_in, high_out):
                os.close(descriptor)

    def _open_page(self) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    # -- messages -----------------------------------------------------------------------------------------------

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + DEADLINE_S
        while True:
            answer = self._read(until)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(f"{message['params']['entry']['text']} {message['params']['entry'].get('url', '')}")
        return message

    # -- pages --------------------------------------------------------------------------------------------------

    def open(self, url: str, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> None:
        """Go there, with a window of that size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = "dark" if is_dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # First an empty page, so that no script or error of the previous page is left.
        for address in ("about:blank", url):
            self.errors.clear()
            self.value("window.isLeft = true")
            self._call("Page.navigate", url=address)
            self.wait("!window.isLeft && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The current value of this JavaScript expression."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait until the expression is true, and return its value; TimeoutError."""
        until = time.monotonic() + deadline_s
        while True:
            value = self.value(expression)
            if value:
                return value
            if time.monotonic() > until:
                text = self.value("document.body?.innerText?.slice(0, 1500)")
                raise TimeoutError(f"not within {deadline_s} s: {expression}; errors {self.errors}; the page:\n{text}")
            # The next frame, not a pause: the page has had time to draw.
            self.value("new Promise(resolve => setTimeout(resolve, 20))")

    def press(self, key: str) -> None:
        """One key; a single character is typed."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text, **_KEY_CODES.get(key, {}))
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **_KEY_CODES.get(key, {}))

    def click(self, expression: str) -> None:
        """Press and release the mouse in the middle of the element that this expression finds."""
        self.value(f"({expression}).scrollIntoView({{block: 'center'}})")
        box = self.value(
            f"(box => [box.x + box.width / 2, box.y + box.height / 2])(({expression}).getBoundingClientRect())"
        )
        for what in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=what, x=box[0], y=box[1], button="left", clickCount=1)

    def enter(self, text: str) -> None:
        """Characters, one key after another."""
        for character in text:
            self.press(character)

    def photograph(self, path: Path, *, is_whole: bool = True) -> None:
        """Save the page as a PNG file: the whole page, or the part that the window shows."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    # -- end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_KEY_CODES: dict[str, dict[str, int]] = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13},
    "Escape": {"windowsVirtualKeyCode": 27},
}
