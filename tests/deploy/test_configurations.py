"""The example configurations are what they say: valid, and a broker starts with each and serves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.authority import Authority
from tests.support.forkserver import forkserver
from tests.support.servers import READY, Broker

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = [
    *(ROOT / "deploy" / "config" / f"{name}.conf" for name in ("laptop", "one-big-host", "behind-tls", "many-tenants")),
    ROOT / "deploy" / "container" / "gnatswarm.conf",
    ROOT / "deploy" / "kubernetes" / "configmap.yaml",
]
VARIABLES = ("NATS_TOKEN", "APP_PASSWORD", "WEB_PASSWORD", "PAGES_PASSWORD", "BILLING_PASSWORD", "SHOP_PASSWORD")
# Where the examples put files, and the ports they have, are a host's own.
PORTS = re.compile(r"\b(4222|8222|8080)\b")


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["data"]["gnatswarm.conf"]) if path.suffix == ".yaml" else text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """An example's text for this machine: free ports, files in a directory of the test's own."""
    for name in (*VARIABLES, "AUDIT_PASSWORD", "POD_NAME"):
        monkeypatch.setenv(name, f"the-{name.lower()}")
    pair = Authority(tmp_path).server()
    (tmp_path / "log").mkdir()

    def adapted(path: Path) -> str:
        text = PORTS.sub("-1", text_of(path))
        text = text.replace("/etc/gnatswarm/tls/tls.crt", str(pair.cert)).replace(
            "/etc/gnatswarm/tls/tls.key", str(pair.key)
        )
        return text.replace("/var/log/gnatswarm", f"{tmp_path}/log").replace("/var/lib/gnatswarm", f"{tmp_path}/lib")

    return adapted


def test_every_example_is_tried() -> None:
    assert set((ROOT / "deploy" / "config").glob("*.conf")) - set(CONFIGURATIONS) == {
        ROOT / "deploy" / "config" / "gnatswarm.conf"  # the reference, which has a test of its own
    }


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name + "-" + path.stem)
def test_it_is_valid_without_a_remark(here: Callable[[Path], str], path: Path, tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text(here(path))
    done = forkserver().run(["gnatswarm", "-t", "-c", str(config)])
    assert done.returncode == 0
    said = re.escape(f"gnatswarm: configuration file {config} is valid")
    assert re.fullmatch(rf"{said} \(sha256:\w+\)\n", done.stderr)


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name + "-" + path.stem)
def test_a_broker_starts_with_it(
    start_broker: Callable[..., Broker], here: Callable[[Path], str], path: Path, tmp_path: Path
) -> None:
    text = here(path)
    # Where the log is read; the example that logs to a file does so to this one.
    broker = start_broker(config=re.sub(r"(?m)^log_(file|size_limit|format).*$", "", text))
    assert READY in broker.log.text
    assert not [line for line in broker.log.lines if "[ERR]" in line or "[FTL]" in line]


def test_a_variable_that_is_not_set_stops_the_start_and_is_named(tmp_path: Path) -> None:
    config = tmp_path / "x.conf"
    config.write_text("authorization { token: $NATS_TOKEN_THAT_IS_NOT_SET }")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gnatswarm", "-t", "-c", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "NATS_TOKEN_THAT_IS_NOT_SET" in done.stderr
