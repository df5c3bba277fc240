"""Who talks to whom: edges from service to service by subject, and what follows from them.

A client's row says what it published by subject, and what it received by subscription. An edge joins the two: of what a
subscription received, each publisher of a matching subject has the part that it has of all that was published there.
That is exact where a subscription was there the whole time, or where a subject has one publisher; else it is a share.
Answers to one-time subjects (`_INBOX.>`) go to those who asked the service, in proportion to their requests.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gnatswarm.spark.schema import OTHER
from gnatswarm.spark.transforms.talkers import heard, how_many, said

INBOX = "_INBOX.>"
UNKNOWN = "*unknown*"
KEY = ["account", "from_service", "subject", "to_service"]
PLACES = ["broker", "account", "from_service", "from_shard", "subject", "to_service", "to_shard", "queue"]


def regex(pattern: Column) -> Column:
    """A regular expression of a subject with wildcards."""
    quoted = F.regexp_replace(pattern, r"([\\^$.|?*+()\[\]{}])", r"\\$1")
    rest = F.regexp_replace(quoted, r"(^|\\\.)>$", r"$1.+")
    # Twice, because two wildcards in a row share the dot between them.
    star = F.regexp_replace(rest, r"(^|\\\.)\\\*(?=\\\.|$)", r"$1[^.]+")
    # A subject may have what Java takes for the end of a line, as U+2028: `.` would not match it, and `$` before it.
    return F.concat(F.lit("(?s)^"), star, F.lit("\\z"))


def is_wildcard(pattern: Column) -> Column:
    """Whether a subscription is to more than one subject. One-time subjects are counted under a name that ends so."""
    return (pattern != INBOX) & (pattern.rlike(r"(^|\.)[*>](\.|$)"))


def matches(subjects: DataFrame, patterns: DataFrame) -> DataFrame:
    """(broker, account, subject, pattern): every subject with each subscription that it matches."""
    key = ["broker", "account"]
    found = subjects.select(*key, "subject").distinct().withColumn("head", F.substring_index("subject", ".", 1))
    wanted = patterns.select(*key, "pattern").distinct()
    literal = found.join(wanted.withColumn("subject", F.col("pattern")), [*key, "subject"]).where(
        ~is_wildcard(F.col("pattern"))
    )
    wild = wanted.where(is_wildcard(F.col("pattern"))).withColumn("regex", regex(F.col("pattern")))
    wild = wild.withColumn("head", F.substring_index("pattern", ".", 1))
    # By the first token where it is no wildcard: a hash join instead of every subject with every pattern.
    open_ended = F.col("head").isin("*", ">")
    by_head = found.join(wild.where(~open_ended), [*key, "head"]).where("subject RLIKE regex")
    anywhere = found.drop("head").join(wild.where(open_ended), key).where("subject RLIKE regex")
    columns = [*key, "subject", "pattern"]
    return literal.select(*columns).unionByName(by_head.select(*columns)).unionByName(anywhere.select(*columns))


def settled(sums: DataFrame) -> DataFrame:
    """The same rows without the plan that they came from; kept, in memory or on disk, until nothing refers to them.

    For sums that are small beside the rows, and that many results are made of: Spark analyses the plan of each result
    anew, with all that it is made of. They are made at once: if two results made them at the same time, the work would
    be done twice, and Spark log errors about the counters of the plan that is gone. An executor that is lost takes its
    part with it: the program fails, and is run again.
    """
    return sums.localCheckpoint(eager=True)


def flows(rows: DataFrame) -> DataFrame:
    """From `by_service`: what went from a service on a shard to a service on a shard, by subject and queue."""
    return met(*talk(rows))


def talk(rows: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """From `by_service`: (`said`, `heard`, `matches`) of subjects that are known; matches but for one-time subjects."""
    spoken = settled(said(rows).where(F.col("subject") != OTHER))
    taken = settled(heard(rows).where(F.col("pattern") != OTHER))
    return spoken, taken, settled(matches(spoken.where(F.col("subject") != INBOX), taken))


def met(spoken: DataFrame, taken: DataFrame, matched: DataFrame) -> DataFrame:
    """`flows`, from `talk`."""
    asked = settled(_shares(spoken.where(F.col("subject") != INBOX), taken.where(F.col("pattern") != INBOX), matched))
    return asked.unionByName(
        _answers(spoken.where(F.col("subject") == INBOX), taken.where(F.col("pattern") == INBOX), asked)
    )


def _shares(spoken: DataFrame, taken: DataFrame, matched: DataFrame) -> DataFrame:
    key = ["broker", "account"]
    per_subject = spoken.groupBy(*key, "subject").agg(F.sum("msgs").alias("subject_msgs"))
    whole = (
        matched.join(per_subject, [*key, "subject"])
        .groupBy(*key, "pattern")
        .agg(F.sum("subject_msgs").alias("matched_msgs"))
    )
    joined = (
        taken.select(
            *key, "pattern", "queue", F.col("service").alias("to_service"), F.col("shard").alias("to_shard"),
            F.col("msgs").alias("taken_msgs"),
        )
        .join(whole, [*key, "pattern"], "left")
        .join(matched, [*key, "pattern"], "left")
        .join(
            spoken.select(
                *key, "subject", F.col("service").alias("from_service"), F.col("shard").alias("from_shard"), "msgs",
                "bytes", "requests",
            ),
            [*key, "subject"],
            "left",
        )
    )  # fmt: skip
    part = F.col("taken_msgs") / F.col("matched_msgs")  # of every message, and of its bytes
    return joined.select(
        *key,
        F.coalesce("from_service", F.lit(UNKNOWN)).alias("from_service"),
        F.coalesce("from_shard", F.lit(-1)).alias("from_shard"),
        F.coalesce("subject", "pattern").alias("subject"),
        "to_service",
        "to_shard",
        "queue",
        F.coalesce(F.col("taken_msgs") * F.col("msgs") / F.col("matched_msgs"), F.col("taken_msgs")).alias("msgs"),
        F.coalesce(F.col("bytes") * part, F.lit(0.0)).alias("bytes"),
        F.coalesce(F.col("taken_msgs") * F.col("requests") / F.col("matched_msgs"), F.lit(0.0)).alias("requests"),
    )


def _answers(spoken: DataFrame, taken: DataFrame, asked: DataFrame) -> DataFrame:
    """What went to inboxes: to those who asked that service, or, if nobody did, to all who got something there."""
    key = ["broker", "account"]
    asks = asked.where("requests > 0").select(
        *key,
        F.col("to_service").alias("from_service"),
        F.col("to_shard").alias("from_shard"),
        F.col("from_service").alias("to_service"),
        F.col("from_shard").alias("to_shard"),
        "requests",
    )
    pairs = asks.groupBy(*key, "from_service", "from_shard", "to_service", "to_shard").agg(
        F.sum("requests").alias("weight")
    )
    known = pairs.select(*key, "from_service", "from_shard").distinct()
    others = spoken.select(*key, F.col("service").alias("from_service"), F.col("shard").alias("from_shard")).join(
        known, [*key, "from_service", "from_shard"], "left_anti"
    )
    fallback = others.join(
        taken.select(
            *key, F.col("service").alias("to_service"), F.col("shard").alias("to_shard"), F.col("msgs").alias("weight")
        ),
        key,
    )
    weighted = pairs.unionByName(fallback.select(*pairs.columns[:-1], F.col("weight").cast("double").alias("weight")))
    total = weighted.groupBy(*key, "from_service", "from_shard").agg(F.sum("weight").alias("whole"))
    return (
        spoken.select(
            *key, F.col("service").alias("from_service"), F.col("shard").alias("from_shard"), "msgs", "bytes"
        )
        .join(total, [*key, "from_service", "from_shard"])
        .join(weighted, [*key, "from_service", "from_shard"])
        .select(
            *key, "from_service", "from_shard", F.lit(INBOX).alias("subject"), "to_service", "to_shard",
            F.lit("").alias("queue"),
            (F.col("msgs") * F.col("weight") / F.col("whole")).alias("msgs"),
            (F.col("bytes") * F.col("weight") / F.col("whole")).alias("bytes"),
            F.lit(0.0).alias("requests"),
        )
    )  # fmt: skip


def _whole(name: str) -> Column:
    return F.round(F.sum(name)).cast("bigint").alias(name)


def edges(moved: DataFrame, most: int = 0) -> DataFrame:
    """From `flows`: from service, subject, to service, with messages, bytes, requests, and messages that crossed."""
    crosses = F.when((F.col("from_shard") >= 0) & (F.col("from_shard") != F.col("to_shard")), F.col("msgs"))
    in_queue = F.when(F.col("queue") != "", F.col("queue"))
    found = (
        moved.groupBy(*KEY)
        .agg(
            _whole("msgs"), _whole("bytes"), _whole("requests"),
            F.round(F.coalesce(F.sum(crosses), F.lit(0.0))).cast("bigint").alias("crossed_msgs"),
            F.array_join(F.array_sort(F.collect_set(in_queue)), " ").alias("queues"),
        )
        .orderBy(F.desc("msgs"), *KEY)
    )  # fmt: skip
    return found.limit(most) if most else found


def between_services(of: DataFrame, most: int = 0) -> DataFrame:
    """From `edges`: the matrix of services: from, to, messages, bytes, subjects."""
    found = (
        of.groupBy("from_service", "to_service")
        .agg(
            F.sum("msgs").alias("msgs"), F.sum("bytes").alias("bytes"), F.sum("crossed_msgs").alias("crossed_msgs"),
            F.countDistinct("subject").alias("subjects"),
        )
        .orderBy(F.desc("msgs"), "from_service", "to_service")
    )  # fmt: skip
    return found.limit(most) if most else found


def who_crosses(of: DataFrame, most: int = 25) -> DataFrame:
    """From `edges`: what went from shard to shard, and whose it was."""
    return (
        of.where("crossed_msgs > 0")
        .select(
            "from_service", "subject", "to_service", "account", "msgs", "crossed_msgs",
            F.try_divide("crossed_msgs", "msgs").alias("crossed_share"),
        )
        .orderBy(F.desc("crossed_msgs"), *KEY)
        .limit(most)
    )  # fmt: skip


def lone(spoken: DataFrame, taken: DataFrame, matched: DataFrame, most: int = 25) -> DataFrame:
    """From `talk`: subjects that one client publishes to, or one service receives; with who that is."""
    spoken = spoken.where(F.col("subject") != INBOX)
    key = ["broker", "account"]
    publishers = spoken.groupBy(*key, "subject").agg(
        how_many().alias("publishers"), F.sum("msgs").alias("msgs"), F.max("service").alias("publisher")
    )
    listeners = (
        matched.join(taken, [*key, "pattern"])
        .groupBy(*key, "subject")
        .agg(
            how_many().alias("listeners"), F.max("service").alias("listener"),
            F.countDistinct("service").alias("listening_services"),
        )
    )  # fmt: skip
    return (
        publishers.join(listeners, [*key, "subject"])
        .where("publishers = 1 or listeners = 1")
        .select(
            "subject", "account", "msgs", "publishers",
            F.when(F.col("publishers") == 1, F.col("publisher")).alias("one_publisher"),
            "listeners",
            F.when(F.col("listening_services") == 1, F.col("listener")).alias("one_listener"),
        )
        .orderBy(F.desc("msgs"), "account", "subject")
        .limit(most)
    )  # fmt: skip


def pairs(of: DataFrame, rows: DataFrame, most: int = 25) -> DataFrame:
    """From `edges` and `by_service`: who asks whom, on which subject, how often, and all that it was answered."""
    replies = (
        of.where(F.col("subject") == INBOX)
        .groupBy("account", F.col("from_service").alias("to_service"), F.col("to_service").alias("from_service"))
        .agg(F.sum("msgs").alias("replies"))
    )
    span = rows.agg(
        ((F.max(F.col("window_start_us") + F.col("window_us")) - F.min("window_start_us")) / 1e6).alias("seconds")
    )
    return (
        of.where("requests > 0")
        .join(replies, ["account", "from_service", "to_service"], "left")
        .crossJoin(F.broadcast(span))
        .select(
            F.col("from_service").alias("requester"), "subject", F.col("to_service").alias("responder"), "account",
            "requests", F.coalesce("replies", F.lit(0)).alias("replies"),
            F.try_divide("requests", "seconds").alias("requests_per_s"),
        )
        .orderBy(F.desc("requests"), "account", "requester", "subject", "responder")
        .limit(most)
    )  # fmt: skip


def of_subject(rows: DataFrame, subject: str) -> tuple[DataFrame, DataFrame, DataFrame]:
    """From `by_service`: (clients that published to a subject, clients that received it, its edges)."""
    who = ["service", "account", "user", "name", "lib", "ip", "shard", "cid"]
    at = [
        F.min("window_start_us").alias("first_us"),
        F.max(F.col("window_start_us") + F.col("window_us")).alias("last_us"),
    ]
    one = F.col("one")
    publishers = (
        rows.select(*who, "window_start_us", "window_us", F.explode("published").alias("one"))
        .where(one["subject"] == subject)
        .groupBy(*who)
        .agg(F.sum(one["msgs"]).alias("msgs"), F.sum(one["requests"]).alias("requests"), *at)
        .orderBy(F.desc("msgs"), *who)
    )
    pattern = one["subject"]
    is_it = (pattern == subject) | (is_wildcard(pattern) & F.rlike(F.lit(subject), regex(pattern)))
    listeners = (
        rows.select(*who, "window_start_us", "window_us", F.explode("received").alias("one"))
        .where(is_it)
        .groupBy(*who, pattern.alias("pattern"), one["queue"].alias("queue"))
        .agg(F.sum(one["msgs"]).alias("msgs"), *at)
        .orderBy(F.desc("msgs"), *who, "pattern", "queue")
    )
    return publishers, listeners, edges(flows(rows).where(F.col("subject") == subject))


def changes(before: DataFrame, now: DataFrame, before_s: float, now_s: float, most: int = 50) -> DataFrame:
    """Of two periods' `edges`: those that are new, gone, or at least twice or half as busy, in messages per second.

    Without those that are 0 in both: each was less than half a message.
    """
    left = before.select(*KEY, F.try_divide("msgs", F.lit(before_s)).alias("before_per_s"))
    right = now.select(*KEY, F.try_divide("msgs", F.lit(now_s)).alias("now_per_s"))
    was, is_now = F.col("before_per_s"), F.col("now_per_s")
    what = (
        F.when(was.isNull(), "new")
        .when(is_now.isNull(), "gone")
        .when(is_now >= 2 * was, "more")
        .when(was >= 2 * is_now, "less")
    )
    return (
        left.join(right, KEY, "full_outer")
        .withColumn("change", what)
        .where("change is not null and (before_per_s > 0 or now_per_s > 0)")
        .select("change", "from_service", "subject", "to_service", "account", "before_per_s", "now_per_s")
        .orderBy(F.desc(F.abs(F.coalesce(is_now, F.lit(0.0)) - F.coalesce(was, F.lit(0.0)))), *KEY)
        .limit(most)
    )
