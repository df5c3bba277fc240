"""Who talks: the rows of clients by service, what each service publishes and receives, and who comes and goes.

A service is what its clients have in common: a part of the name that they connect with, their user, or the beginning of
the subject that they publish most to (SERVICES_BY).
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.schema import OTHER, REST

# By the name without what numbers an instance ("orders-7f9c-2" is "orders"), else the user, else library and address;
# or by one of these alone, or by the first token of a subject.
SERVICES_BY = ("auto", "name", "user", "subject")
# Parts of a name that have a digit, at its end: a number, an address, the id of a container or a pod.
INSTANCE = r"([-_.:/#@ ]+[0-9A-Za-z]*[0-9][0-9A-Za-z]*)+$"
UNNAMED = "*unnamed*"


def services_mistake(by: str) -> str:
    """Why `by` is none of SERVICES_BY and no regular expression with a group; "" if it is one."""
    if by in SERVICES_BY:
        return ""
    try:
        groups = re.compile(by).groups
    except re.error as error:
        return f"{by!r} is none of {', '.join(SERVICES_BY)}, and no regular expression: {error}"
    return (
        "" if groups else f"{by!r} is none of {', '.join(SERVICES_BY)}; as a regular expression it needs a group: (…)"
    )


def service(by: str = "auto") -> Column:
    """A client's service. `by`: one of SERVICES_BY, or a regular expression of which the first group is the service."""
    name = _or_null(F.regexp_replace("name", INSTANCE, ""))
    user = _or_null(F.col("user"))
    place = _or_null(F.concat_ws(" at ", _or_null(F.col("lib")), _or_null(F.col("ip"))))
    heaviest = F.coalesce(
        F.get(F.expr("filter(published, one -> one.subject <> '*other*')"), F.lit(0))["subject"],
        F.get(F.expr("filter(received, one -> one.subject <> '*other*')"), F.lit(0))["subject"],
    )
    found = {
        "auto": F.coalesce(name, user, place),
        "name": name,
        "user": user,
        "subject": F.substring_index(heaviest, ".", 1),
    }.get(by)
    if found is None:
        found = F.coalesce(_or_null(F.regexp_extract("name", by, 1)), user, place)
    is_other = F.col("user").isin(OTHER, REST)
    return F.when(is_other, F.col("user")).otherwise(F.coalesce(found, F.lit(UNNAMED)))


def _or_null(text: Column) -> Column:
    return F.when(text != "", text)


def by_service(clients: DataFrame, by: str = "auto") -> DataFrame:
    """The rows of clients with their service; without the broker's own messages."""
    return clients.where(F.col("user") != REST).withColumn("service", service(by))


def _cids() -> Column:
    """The clients' ids. Those that have left have the number 0, and were mostly seen before with their own."""
    return F.collect_set(F.when(F.col("cid") > 0, F.col("cid"))).alias("cids")


def how_many() -> Column:
    """From `said` or `heard`: how many clients. One that moved is in rows of several shards, and counts once."""
    seen, all_services = F.collect_set(F.when(F.size("cids") > 0, F.col("service"))), F.collect_set("service")
    # A service of which only clients that have left were seen is at least one more.
    return F.size(F.array_distinct(F.flatten(F.collect_list("cids")))) + F.size(F.array_except(all_services, seen))


def said(rows: DataFrame) -> DataFrame:
    """From `by_service`: what each service published from each shard to each subject, and by which clients."""
    return (
        rows.select("broker", "account", "service", "shard", "cid", F.inline("published"))
        .groupBy("broker", "account", "service", "shard", "subject")
        .agg(
            F.sum("msgs").alias("msgs"),
            F.sum("bytes").alias("bytes"),
            F.sum("requests").alias("requests"),
            _cids(),
        )
    )


def heard(rows: DataFrame) -> DataFrame:
    """From `by_service`: what each service received on each shard by each subscription, and by which clients."""
    return (
        rows.select("broker", "account", "service", "shard", "cid", F.inline("received"))
        .groupBy("broker", "account", "service", "shard", F.col("subject").alias("pattern"), "queue")
        .agg(F.sum("msgs").alias("msgs"), _cids())
    )


def over_windows(rows: DataFrame) -> DataFrame:
    """From `by_service`: one row per client, with the names and meanings of its windows' rows; without its subjects."""
    end = F.max(F.col("window_start_us") + F.col("window_us"))
    sums = ["in_msgs", "in_bytes", "out_msgs", "out_bytes", "opened", "closed"]
    return rows.groupBy("broker", "account", "service", "ip", "shard", "cid").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.min("window_start_us").alias("window_start_us"),
        (end - F.min("window_start_us")).alias("window_us"),
    )


def services(rows: DataFrame, most: int = 25) -> DataFrame:
    """From `by_service`: each service, what it sent and got, its clients, and who came and went."""
    seconds = (F.max(F.col("window_start_us") + F.col("window_us")) - F.min("window_start_us")) / 1e6
    return (
        rows.groupBy("account", "service")
        .agg(
            F.sum("in_msgs").alias("in_msgs"),
            F.sum("in_bytes").alias("in_bytes"),
            F.sum("out_msgs").alias("out_msgs"),
            F.sum("out_bytes").alias("out_bytes"),
            F.countDistinct(F.when(F.col("cid") > 0, F.struct("broker", "cid"))).alias("clients"),
            F.sum("opened").alias("opened"),
            F.sum("closed").alias("closed"),
            F.countDistinct("shard").alias("on_shards"),
            F.min("window_start_us").alias("first_us"),
            F.max(F.col("window_start_us") + F.col("window_us")).alias("last_us"),
            seconds.alias("seconds"),
        )
        .orderBy(F.desc(F.col("in_msgs") + F.col("out_msgs")), "account", "service")
        .limit(most)
    )


def churners(rows: DataFrame, most: int = 25, least: int = 10) -> DataFrame:
    """From `by_service`: services of which at least so many clients came, or left, and how many in a minute."""
    span = F.max(F.col("window_start_us") + F.col("window_us")) - F.min("window_start_us")
    return (
        rows.groupBy("account", "service", "ip")
        .agg(
            F.sum("opened").alias("opened"),
            F.sum("closed").alias("closed"),
            F.sum(F.col("in_msgs") + F.col("out_msgs")).alias("msgs"),
            (span / 60e6).alias("minutes"),
        )
        .where(f"greatest(opened, closed) >= {int(least)}")
        .withColumn("opened_per_minute", F.try_divide("opened", "minutes"))
        .select("service", "account", "ip", "opened", "closed", "msgs", "opened_per_minute")
        .orderBy(F.desc("opened"), "account", "service", "ip")
        .limit(most)
    )
