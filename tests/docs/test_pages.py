"""What the documentation says to type is typed, and what it says is printed is printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.config.flags import BY_NAME
from tests.docs.page import BIN, ROOT, Block, Mismatch, Reader, blocks, starts_broker, steps

PAGES = [ROOT / "README.md", *sorted((ROOT / "deploy").glob("*.md")), *sorted((ROOT / "deploy").glob("*/README.md"))]
PAGES.append(ROOT / "loadtest" / "README.md")

# Kinds of blocks that tell nobody to do anything.
DRAWINGS = frozenset({"text"})

# Blocks that are not typed here, by page and first line, each with the reason.
SYSTEMD = "needs systemd as process 1"
HOST = "changes the host"
ENGINE = "needs a container engine"
NOT_TYPED: dict[tuple[str, str], str] = {
    (
        "README.md",
        "$ make run        # a broker on port 4222, one shard per core",
    ): "the second of them runs this test; what the first does is tried by the blocks after it",
    ("README.md", '$ make run ARGS="--port 4333"                 # ARGS goes to gnatswarm as it is'): "installs",
    (
        "deploy/README.md",
        "$ sudo python3 -m venv /opt/gnatswarm",
    ): HOST,
    ("deploy/README.md", "$ sudo systemctl enable --now gnatswarm"): SYSTEMD,
    ("deploy/README.md", "$ sudo systemctl enable --now gnatswarm.socket"): SYSTEMD,
    ("deploy/README.md", "$ podman build -t gnatswarm:0.1.0 -f deploy/container/Containerfile ."): ENGINE,
    (
        "deploy/README.md",
        "$ kubectl apply -k deploy/kubernetes",
    ): "needs a cluster",
    ("deploy/README.md", "$ sudo cp deploy/sysctl/90-gnatswarm.conf /etc/sysctl.d/"): HOST,
    ("deploy/README.md", "$ sudo python3 -m venv /opt/gnatswarm-0.2.0"): "a version that is not there",
    ("deploy/README.md", "$ sudo ln -sfn /opt/gnatswarm-0.2.0 /opt/gnatswarm"): "a version that is not there",
    (
        "loadtest/README.md",
        "$ make build                                      # once; or: pip install 'gnatswarm[loadtest]'",
    ): ("installs"),
    ("loadtest/README.md", "$ .venv/bin/locust -f loadtest/locustfile.py --host nats://127.0.0.1:4222"): (
        "runs until it is stopped; tests/loadtest/test_locust.py opens its page"
    ),
    (
        "loadtest/README.md",
        "$ gnatswarm bench --compare                                      # ours with 1, 2, 4 shards, and nats-servers",
    ): "takes many minutes; the block after it is a small one",
    (
        "deploy/MANY_MACHINES.md",
        "$ gnatswarm report --master spark://spark-1:7077 --stats-dir /mnt/stats --out report.html",
    ): "needs a Spark cluster",
}


def typed(path: Path) -> list[Block]:
    return [
        block for block in blocks(path) if block.kind not in DRAWINGS and (block.page, block.title) not in NOT_TYPED
    ]


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


@pytest.mark.long
@pytest.mark.timeout(1200)  # some pages start dozens of programs
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_says_what_happens(path: Path, reader: Reader) -> None:
    for block in typed(path):
        if block.kind == "yaml":
            yaml.safe_load(block.text)
        else:
            reader.read(block)


def test_every_exception_is_still_there() -> None:
    there = {(block.page, block.title) for path in PAGES for block in blocks(path)}
    assert set(NOT_TYPED) - there == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_command_hides_in_an_indented_block(path: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    assert re.findall(r"(?m)^(?:    |\t)(?:\$ |make |gnatswarm |pip ).*", text) == []


def test_make_run_starts_what_the_page_is_tried_with() -> None:
    done = subprocess.run(
        ["make", "-n", "run", "ARGS=--port 4333"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert "exec .venv/bin/gnatswarm --port 4333" in done.stdout


# Pages beside other parts have commands of programs that take long; that these know what they are told is seen at once.
@pytest.mark.parametrize("page", ["loadtest/README.md", "spark/README.md"])
def test_flags_of_other_pages_are_known(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    helps: dict[str, str] = {}
    found = re.findall(r"(?m)^\s*(?:\$ )?(?:\.venv/bin/)?gnatswarm (bench|report|ingest)\b([^\n#→]*)", text)
    assert found
    for program, rest in found:
        if program not in helps:
            done = subprocess.run(
                [BIN / "gnatswarm", program, "-h"], capture_output=True, text=True, timeout=60, check=True
            )
            helps[program] = done.stdout
        for flag in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", rest):
            assert flag in helps[program] or flag[2:] in BY_NAME, f"{page}: {program} {flag}"


def test_the_version_in_the_pages_is_ours() -> None:
    for path in PAGES:
        for version in re.findall(r"gnatswarm:(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8")):
            assert version == OWN_VERSION, path


# ---- the reader can fail


def block(text: str, kind: str = "console") -> Block:
    return Block("x.md", 1, kind, text)


def test_another_output_is_found(reader: Reader) -> None:
    reader.read(block("$ echo a 1 b\na 2 b"))
    with pytest.raises(Mismatch):
        reader.read(block("$ echo a 1 c\na 1 b"))


def test_a_command_that_fails_is_found(reader: Reader) -> None:
    with pytest.raises(Mismatch):
        reader.read(block("$ false"))


def test_lines_in_another_order_are_found(reader: Reader) -> None:
    with pytest.raises(Mismatch):
        reader.read(block("$ printf 'b\\na\\n'\na\nb"))


def test_a_python_block_that_prints_something_else_is_found(reader: Reader) -> None:
    reader.read(block("print('yes')  # yes", "python"))
    with pytest.raises(Mismatch):
        reader.read(block("print('no')  # yes", "python"))


def test_a_wrong_configuration_is_found(reader: Reader) -> None:
    reader.read(block("port: 1", "conf"))
    with pytest.raises(Mismatch):
        reader.read(block("prot: 1", "conf"))


def test_numbers_once_seen_are_known_again(reader: Reader) -> None:
    reader.read(block("$ echo process $$\nprocess 1234\n$ [ 1234 != 12''34 ]"))


def test_what_starts_a_broker() -> None:
    assert starts_broker("gnatswarm -p 4222") and starts_broker('make run ARGS="-p 1"')
    for command in ("gnatswarm status -p 4222", "gnatswarm -t -c x", "gnatswarm --signal ldm", "ls"):
        assert not starts_broker(command)


def test_a_command_may_take_several_lines() -> None:
    (step,) = steps(block("$ echo a \\\n    b\na b"))
    assert step.command == "echo a \\\n    b" and step.printed == ["a b"]
