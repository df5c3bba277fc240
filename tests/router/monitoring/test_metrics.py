"""`/metrics` is what Prometheus reads: valid, typed, bounded in series, and equal to the facts."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from gnatswarm.broker.options import Options
from gnatswarm.router.monitoring import metrics
from gnatswarm.router.monitoring.aggregate import subjects
from gnatswarm.router.monitoring.facts import Facts, ShardFacts
from gnatswarm.shards.boundary.rows import AccountRow, DeniedRow, SubjectRow
from tests.router.monitoring.broker_facts import A_LEAF, facts, shard


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def subject(name: str, msgs: int) -> dict[str, object]:
    counts = {"msgs": msgs, "bytes": 2 * msgs, "deliveries": 3 * msgs}
    return {"account": "$G", "subject": name, **counts, "shards": {"0": counts}}


def test_every_family_has_help_a_type_and_our_prefix():
    text = metrics.exposition(facts(shard(0), shard(1)), [subject("a", 1)], {"/varz": 3})
    families = list(text_string_to_metric_families(text))
    assert families
    for family in families:
        assert family.name.startswith("gnatswarm_")
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter")
        assert family.samples
        # Prometheus' naming: a counter's samples end in _total, nothing else's do.
        assert all(sample.name.endswith("_total") == (family.type == "counter") for sample in family.samples)
    assert len({family.name for family in families}) == len(families)


def test_values_are_the_facts_by_shard():
    text = metrics.exposition(
        facts(shard(0, in_msgs=5, connections=2), shard(3, in_msgs=7, loop_lag_us=1500, is_accepting=False)), [], {}
    )
    found = samples(text)
    assert found["gnatswarm_received_messages_total", (("shard", "0"),)] == 5
    assert found["gnatswarm_received_messages_total", (("shard", "3"),)] == 7
    assert found["gnatswarm_connections", (("shard", "0"),)] == 2
    assert found["gnatswarm_loop_lag_seconds", (("shard", "3"),)] == pytest.approx(0.0015)
    assert found["gnatswarm_shard_ready", (("shard", "3"),)] == 0


def test_traffic_with_other_servers_is_told_where_there_may_be_any():
    counts = {"servers_in_msgs": 1, "servers_in_bytes": 2, "servers_out_msgs": 3, "servers_out_bytes": 4}
    alone, leaf = (
        msgspec.structs.replace(facts(shard(0), options=options), **counts) for options in (Options(), A_LEAF)
    )
    assert not [name for name, _labels in samples(metrics.exposition(alone, [], {})) if "_servers_" in name]
    found = samples(metrics.exposition(leaf, [], {}))
    assert {
        name.removeprefix("gnatswarm_servers_"): count for (name, _), count in found.items() if "_servers_" in name
    } == {
        "received_messages_total": 1,
        "received_bytes_total": 2,
        "sent_messages_total": 3,
        "sent_bytes_total": 4,
    }


def test_large_counters_keep_their_last_digit():
    text = metrics.exposition(facts(shard(0, in_bytes=2**53 + 2)), [], {})
    assert f'gnatswarm_received_bytes_total{{shard="0"}} {2**53 + 2}\n' in text


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "line\nbreak", "ümläut.☃", "{brace}=,", "#"])
def test_a_subject_of_any_characters_comes_back_as_it_was(name):
    found = samples(metrics.exposition(facts(shard(0)), [subject(name, 4)], {}))
    labels = (("account", "$G"), ("shard", "0"), ("subject", name))
    assert found["gnatswarm_subject_messages_total", labels] == 4
    assert found["gnatswarm_subject_deliveries_total", labels] == 12


DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ACCOUNTS = [
    (0, [AccountRow("A", 2, 10, 100, 20, 200, 1, 5), AccountRow("B", 1, 1, 1, 1, 1, 0, 0)]),
    (1, [AccountRow("A", 3, 30, 300, 40, 400, 0, 7), AccountRow("C", 0, 0, 0, 0, 0, 0, 9)]),
]
DENIED = [(0, DeniedRow("A", "ann", publishes=2, waits=3)), (1, DeniedRow("A", "ann", publishes=5, subscriptions=1))]


async def test_accounts_have_their_own_and_what_nobody_got_is_counted():
    found = await metrics.accounts(ACCOUNTS, 2, is_recorded=True)
    shown = samples(metrics.exposition(facts(shard(0), shard(1)), [], {}, found))

    def of(name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(value for _, value in labels): n for (one, labels), n in shown.items() if one == f"gnatswarm_{name}"
        }

    assert of("account_connections") == {("A", "0"): 2, ("A", "1"): 3, ("B", "0"): 1}
    assert of("account_received_messages_total") == {("A", "0"): 10, ("A", "1"): 30, ("B", "0"): 1}
    assert of("account_delivered_bytes_total") == {("A", "0"): 200, ("A", "1"): 400, ("B", "0"): 1}
    assert of("account_slow_consumers_total") == {("A", "0"): 1, ("A", "1"): 0, ("B", "0"): 0}
    # C is not among the two that are shown, but nobody got its messages either.
    assert of("unwanted_messages_total") == {("0",): 5, ("1",): 16}
    assert of("account_unwanted_messages_total") == {("A", "0"): 5, ("A", "1"): 7, ("B", "0"): 0}


def test_a_shard_that_is_gone_takes_no_part_of_a_counter_of_others_with_it():
    """A sum over shards would fall, and to a reader what is left of it has then been counted once more."""
    entries = subjects([(at, [SubjectRow("a", at + 1, 8, 9, 0, 0, 0, True, account="A")]) for at in (0, 1)])
    both = samples(metrics.exposition(facts(shard(0), shard(1)), entries, {}, denied=DENIED))
    entries = subjects([(0, [SubjectRow("a", 1, 8, 9, 0, 0, 0, True, account="A")])])
    one = samples(metrics.exposition(facts(shard(0), shard(1)), entries, {}, denied=DENIED[:1]))
    counted = {key: count for key, count in one.items() if re.search("_subject_|_permission_|_limited_", key[0])}
    assert len(counted) == 5
    assert counted == {key: both[key] for key in counted}
    of_bob = [(0, DeniedRow("A", "bob", publishes=6)), (1, DeniedRow("A", "eve", publishes=1))]
    assert metrics.most_denied([*of_bob, *DENIED], 2) == [of_bob[0], *DENIED], "the most together, not of a shard"


async def test_accounts_that_are_forgotten_are_none_that_are_shown_and_count_where_all_do():
    forgotten = (0, [AccountRow("", unwanted_msgs=4)])
    found = await metrics.accounts([*ACCOUNTS[:1], forgotten], 3, is_recorded=True)
    assert [row.name for _, row in found.shown] == ["A", "B"]
    assert found.unwanted_msgs == {0: 9}


async def test_without_a_recorder_nobody_knows_what_went_to_nobody():
    found = await metrics.accounts(ACCOUNTS, 1, is_recorded=False)
    text = metrics.exposition(facts(shard(0)), [], {}, found)
    assert "unwanted" not in text
    assert 'gnatswarm_account_connections{account="A",shard="1"} 3\n' in text
    assert 'account="B"' not in text


async def test_open_metrics_is_valid_and_says_the_same():
    found = await metrics.accounts(ACCOUNTS, 3, is_recorded=True)
    text = metrics.exposition(facts(shard(0), shard(1)), [subject("a", 1)], {"/varz": 3}, found, DENIED)
    families = list(open_metrics_families(metrics.open_metrics(text)))
    assert {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    } == samples(text)
    assert {family.type for family in families} == {"gauge", "counter"}


PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("text/plain;q=0.5, application/openmetrics-text;version=1.0.0;q=0.3", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        *(("", False), ("*/*", False), ("text/html,*/*;q=0.8", False), (";;q=,,", False)),
    ],
)
def test_who_gets_open_metrics(accept, is_open):
    assert metrics.prefers_open_metrics(accept) is is_open


def test_health_is_zero_while_a_shard_is_down():
    assert samples(metrics.exposition(facts(shard(0)), [], {}))["gnatswarm_healthy", ()] == 1
    assert samples(metrics.exposition(facts(shard(0, phase="killed")), [], {}))["gnatswarm_healthy", ()] == 0


def test_series_grow_with_shards_and_not_with_connections():
    def count(*shards: ShardFacts) -> int:
        return len(samples(metrics.exposition(facts(*shards), [], {})))

    one, two = count(shard(0)), count(shard(0), shard(1))
    assert two - one < 25
    assert count(shard(0, connections=60_000, subscriptions=1_000_000)) == one


def test_no_secret_is_in_it():
    secretive: Facts = msgspec.structs.replace(
        facts(shard(0)), options=Options(auth_token="hush-1", http_user="u", http_password="hush-2")
    )
    assert "hush" not in metrics.exposition(secretive, [], {})


async def test_what_dashboards_and_alerts_ask_for_exists():
    """Every metric that the files for Grafana and Prometheus name is one that /metrics shows, by that exact name."""
    found = await metrics.accounts(ACCOUNTS, 1, is_recorded=True)
    shown = metrics.exposition(
        facts(shard(0), shard(1), options=A_LEAF), [subject("s", 1)], {"/varz": 1}, found, DENIED, 1
    )
    known = {sample.name for family in text_string_to_metric_families(shown) for sample in family.samples}
    files = [*DEPLOY.glob("grafana/*.json"), *DEPLOY.glob("prometheus/*.yml")]
    assert files
    for path in files:
        # Names that end in "_" or stand in a path (gnatswarm.rules.yml) are none.
        named = set(re.findall(r"\bgnatswarm_[a-z_]*[a-z]\b(?!\.yml)", path.read_text()))
        assert named - known == set(), path.name
    assert len(re.findall(r"gnatswarm_", (DEPLOY / "grafana" / "gnatswarm.json").read_text())) > 20
