"""The broker's private directory is looked after while it runs, and what the log says of it is true."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnatswarm.broker.options import Options
from gnatswarm.router.supervision.runtime_files import RuntimeFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeFiles]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = RuntimeFiles(Options(), pid=os.getpid(), port=4222, server_name="a", announce=lambda path: None)
    yield found
    found.operators.close()
    found.remove()


def test_without_a_descriptor_nobody_is_said_to_have_removed_anything(
    files: RuntimeFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_descriptor(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files", path)

    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "gnatswarm.router"):
        patched.setattr(os, "listdir", no_descriptor)
        assert not files.mend()
        assert not files.mend()
    assert not files.mend()
    (said,) = caplog.messages
    assert said.startswith(f"Cannot look after this broker's files: {files.directories[0]}: Too many open files.")


def test_an_operators_socket_that_was_removed_is_made_again(
    files: RuntimeFiles, caplog: pytest.LogCaptureFixture
) -> None:
    path = next(Path(files.directories[0]).glob("operator*"))
    path.unlink()
    old = files.operators
    with caplog.at_level(logging.INFO, "gnatswarm.router"):
        assert files.mend() and not files.mend()
    old.close()
    assert path.exists()
    assert caplog.messages == [f"Somebody removed the operators' socket {path}; it is made again"]
