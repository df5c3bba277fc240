"""Matching a subject: every order of changes and look-ups against the model, and the cost of look-ups.

A question is asked again and again between the changes, so that an answer that stays in the match cache after it
ceased to be true would show.
"""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnatswarm.probes.sublist import SublistProbe
from tests.support.model import is_valid_subject, matches

tokens = st.sampled_from(["a", "b", "c"])
literal_subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
pattern_subjects = (
    st.lists(st.sampled_from(["a", "b", "*", "*", "c*"]), min_size=1, max_size=4)
    .flatmap(lambda parts: st.sampled_from([parts, [*parts, ">"], [*parts[:-1], ">"]]))
    .map(".".join)
)
subscription_subjects = literal_subjects | pattern_subjects
# What may be published to: literals, wildcards taken literally, empty tokens.
published_subjects = literal_subjects | st.text(alphabet="ab.*>", min_size=1, max_size=6)
queues = st.sampled_from(["", "", "", "q", "r"])
shards = st.integers(0, 3) | st.just(63)


class SublistAgainstModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.probe = SublistProbe()
        self.subscriptions = {}  # number → (subject, queue)
        self.remote = set()  # (shard, subject)
        self.remote_queues = {}  # (shard, subject, queue) → members
        self.asked = ["a", "a.b", "a.b.c", "b"]
        self.number = 0
        self.dropping = set()  # shards that are gone, of whose interest some is there
        self.is_telling = False
        self.told = {}  # (subject, queue) → members: what a sibling knows

    def expected(self, subject):
        plain: list[int] = []
        groups: dict[str, list[int]] = {}
        weights: dict[str, dict[int, int]] = {}
        for number, (pattern, queue) in self.subscriptions.items():
            if matches(pattern, subject):
                (groups.setdefault(queue, []) if queue else plain).append(number)
        for (shard, pattern, queue), members in self.remote_queues.items():
            if matches(pattern, subject):
                here = weights.setdefault(queue, {})
                here[shard] = here.get(shard, 0) + members
        return {
            "plain": sorted(plain),
            "queues": {
                queue.encode(): (sorted(groups.get(queue, [])), weights.get(queue, {})) for queue in {*groups, *weights}
            },
            "remote": {shard for shard, pattern in self.remote if matches(pattern, subject)},
        }

    @rule(subject=subscription_subjects, queue=queues)
    def subscribe(self, subject, queue):
        self.number += 1
        self.probe.subscribe(self.number, subject.encode(), queue.encode())
        self.subscriptions[self.number] = (subject, queue)

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data())
    def unsubscribe(self, data):
        number = data.draw(st.sampled_from(sorted(self.subscriptions)))
        self.probe.unsubscribe(number)
        del self.subscriptions[number]

    @rule(shard=shards, subject=subscription_subjects, wanted=st.booleans())
    def set_remote(self, shard, subject, wanted):
        self.end_dropping(shard)
        self.probe.set_remote(shard, subject.encode(), wanted)
        (self.remote.add if wanted else self.remote.discard)((shard, subject))

    @rule(shard=shards, subject=subscription_subjects, queue=st.sampled_from(["q", "r"]), members=st.integers(0, 3))
    def set_remote_queue(self, shard, subject, queue, members):
        self.end_dropping(shard)
        self.probe.set_remote_queue(shard, subject.encode(), queue.encode(), members)
        if members:
            self.remote_queues[shard, subject, queue] = members
        else:
            self.remote_queues.pop((shard, subject, queue), None)

    @precondition(lambda self: self.remote or self.remote_queues)
    @rule(data=st.data())
    def end_remote(self, data):
        """The end of an interest that is there; set_remote() would seldom find one."""
        key = data.draw(st.sampled_from(sorted(self.remote) + sorted(self.remote_queues)))
        if len(key) == 2:
            self.probe.set_remote(key[0], key[1].encode(), False)
            self.remote.remove(key)
        else:
            self.probe.set_remote_queue(key[0], key[1].encode(), key[2].encode(), 0)
            del self.remote_queues[key]

    @rule(shard=shards, is_gradual=st.booleans())
    def drop_remote(self, shard, is_gradual):
        self.end_dropping(shard)
        if is_gradual:
            self.probe.begin_dropping(shard)
            self.dropping.add(shard)
        else:
            self.probe.drop_remote(shard)
        self.remote = {key for key in self.remote if key[0] != shard}
        self.remote_queues = {key: n for key, n in self.remote_queues.items() if key[0] != shard}

    def end_dropping(self, shard):
        """As a mesh, whose next link to that shard waits."""
        if shard in self.dropping:
            assert self.probe.drop(shard, 1 << 40)
            self.dropping.remove(shard)

    @precondition(lambda self: self.dropping)
    @rule(data=st.data(), most=st.integers(1, 80))
    def drop_some(self, data, most):
        shard = data.draw(st.sampled_from(sorted(self.dropping)))
        if self.probe.drop(shard, most):
            self.dropping.remove(shard)

    @precondition(lambda self: not self.is_telling)
    @rule()
    def begin_telling(self):
        self.probe.begin_telling()
        self.is_telling = True
        self.told = {}

    @precondition(lambda self: self.is_telling)
    @rule(most=st.integers(1, 80))
    def tell_some(self, most):
        self.is_telling = not self.probe.tell(most)
        self.told = now_told(self.told, self.probe.take_told())
        if not self.is_telling:
            assert self.told == own_interest(self.subscriptions)

    @rule(subject=published_subjects)
    def ask_of_another(self, subject):
        assert self.probe.match(subject.encode()) == self.expected(subject)
        self.asked.append(subject)

    @invariant()
    def answers_are_true(self):
        for subject in self.asked[:4] + self.asked[-4:]:
            assert self.probe.match(subject.encode()) == self.expected(subject)

    @invariant()
    def holds_no_more_than_it_was_given(self):
        assert self.probe.has_cursors == (self.is_telling or bool(self.dropping))
        if self.dropping:
            return
        counts = self.probe.counts
        wanted = {subject for subject, _ in self.subscriptions.values()}
        wanted |= {subject for _, subject in self.remote} | {subject for _, subject, _ in self.remote_queues}
        names = {queue for _, queue in self.subscriptions.values() if queue} | {key[2] for key in self.remote_queues}
        literal = {subject for subject in wanted if "*" not in subject.split(".") and ">" not in subject.split(".")}
        assert counts["subscriptions"] == len(self.subscriptions)
        assert counts["queue_names"] == len(names)
        assert counts["literals"] == len(literal)
        assert counts["patterns"] == len({subject.split(".")[0] for subject in wanted - literal})


def now_told(known, told):
    """What a sibling knows that is told this."""
    known = dict(known)
    for subject, queue, members in told:
        if members:
            known[subject, queue] = members
        else:
            known.pop((subject, queue), None)
    return known


def own_interest(subscriptions):
    found: dict[tuple[bytes, bytes], int] = {}
    for subject, queue in subscriptions.values():
        key = subject.encode(), queue.encode()
        found[key] = found.get(key, 0) + 1 if queue else 1
    return found


SublistAgainstModel.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_answers_are_the_models_in_every_order_of_changes = SublistAgainstModel.TestCase


def plain(probe, subject):
    return probe.match(subject)["plain"]


@pytest.mark.parametrize("subject", [b"", b".", b"a.", b"a..b", b"a.>.b"])
def test_a_bad_subject_is_no_subscription(subject):
    assert not is_valid_subject(subject.decode())
    with pytest.raises(ValueError, match="not a subscription subject"):
        SublistProbe().subscribe(1, subject)


def test_an_answer_is_made_once_and_found_again():
    probe = SublistProbe()
    probe.subscribe(1, b"a.b")
    for _ in range(10):
        assert plain(probe, b"a.b") == [1]
    assert probe.counts["builds"] == 1
    assert probe.counts["cached"] == 1


# A change of the subscription on the left → does the answer for the subject on the right have to be made anew?
@pytest.mark.parametrize(
    ("changed", "subject", "is_made_anew"),
    [
        (b"a.b", b"a.b", True),
        (b"a.c", b"a.b", False),
        (b"_INBOX.x", b"a.b", False),
        (b"_INBOX.x.*", b"a.b", False),
        (b"_INBOX.x.*", b"_INBOX.y.1", False),
        (b"_INBOX.x.*", b"_INBOX.x.1", True),
        (b"a.*", b"a.b", True),
        (b"a.*", b"b.b", False),
        (b"a.>", b"a.b.c", True),
        (b"a.b.>", b"a.b.c", True),
        (b"a.b.*.d", b"a.b.c.d", True),
        (b"*.b", b"a.b", True),
        (b">", b"a.b", True),
    ],
)
def test_a_change_makes_only_answers_stale_that_it_may_have_a_part_in(changed, subject, is_made_anew):
    probe = SublistProbe()
    probe.match(subject)
    before = probe.counts["builds"]
    probe.subscribe(1, changed)
    probe.match(subject)
    probe.unsubscribe(1)
    probe.match(subject)
    assert probe.counts["builds"] - before == (2 if is_made_anew else 0)


@pytest.mark.parametrize("name", [b"s.%d", b"%d.*", b"s.%d.>", b"s.*.%d"])
@pytest.mark.parametrize("queue", [b"", b"q"])
def test_a_sibling_that_goes_takes_all_of_its_interest_with_it(name, queue):
    """Many names side by side, so that taking one out moves others in the table that is being gone through."""
    probe = SublistProbe()
    for number in range(500):
        if queue:
            probe.set_remote_queue(1, name % number, queue, 1)
        else:
            probe.set_remote(1, name % number, True)
    probe.subscribe(7, name % 250)
    probe.drop_remote(1)
    assert probe.counts["literals"] + probe.counts["patterns"] == 1
    assert probe.counts["queue_names"] == 0
    probe.unsubscribe(7)
    assert probe.counts["literals"] + probe.counts["patterns"] == 0


@pytest.mark.parametrize("name", ["s.%d", "%d.*", "s.%d.>", "s.*.%d", "s.%d.*.%d", "*.%d"])
@pytest.mark.parametrize("is_growing", [True, False])
def test_a_sibling_that_is_told_in_pieces_knows_everything_in_the_end(name, is_growing):
    """While tables grow, shrink, are split and joined."""
    dice = random.Random(name)
    probe = SublistProbe()
    here: dict[int, tuple[str, str]] = {}

    def subscribe(number):
        here[number] = name.replace("%d", str(dice.randrange(4000))), dice.choice(["", "", "q", f"r{number % 500}"])
        probe.subscribe(number, here[number][0].encode(), here[number][1].encode())

    for number in range(200 if is_growing else 6000):
        subscribe(number)
    probe.begin_telling()
    known: dict[tuple[bytes, bytes], int] = {}
    is_over, pieces = False, 0
    while not is_over:
        is_over = probe.tell(20)
        pieces += 1
        known = now_told(known, probe.take_told())
        if is_growing and len(here) < 6000:
            for _ in range(100):
                subscribe(len(here))
        elif not is_growing:
            for number in dice.sample(sorted(here), min(100, len(here))):
                probe.unsubscribe(number)
                del here[number]
    known = now_told(known, probe.take_told())
    assert known == own_interest(here)
    assert pieces > 10
    assert not probe.has_cursors


def test_a_million_patterns_side_by_side_are_told_in_pieces_of_the_same_size():
    """Also where most of a large table is empty."""
    probe = SublistProbe()
    for number in range(60_000):
        probe.subscribe(number, b"%d.*" % number)
    for number in range(1, 60_000):
        probe.unsubscribe(number)
    probe.begin_telling()
    pieces = 1
    while not probe.tell(100):
        pieces += 1
    assert pieces > 500
    assert probe.take_told() == [(b"0.*", b"", 1)]


def test_groups_of_a_sibling_that_is_gone_answer_nobody():
    """A request must have its 503 before all that the sibling wanted is dropped."""
    probe = SublistProbe()
    probe.set_remote_queue(1, b"a", b"q", 2)
    probe.set_remote(1, b"a", True)
    probe.set_remote_queue(1, b"a", b"r", 2)
    probe.set_remote_queue(2, b"a", b"r", 1)
    probe.begin_dropping(1)
    assert probe.match(b"a") == {"plain": [], "queues": {b"r": ([], {2: 1})}, "remote": set()}
    probe.set_remote_queue(2, b"a", b"r", 0)
    assert probe.match(b"a") == {"plain": [], "queues": {}, "remote": set()}
    assert probe.drop(1, 1000)
    assert probe.counts["queue_names"] == 0


@pytest.mark.parametrize("pattern", [b"a", b"*"])
@pytest.mark.parametrize("seed", range(4))
def test_many_groups_on_one_subject_are_told_apart_while_they_come_and_go(pattern, seed):
    """Up to 16 of a subject's groups are looked through, more are in a table."""
    dice = random.Random(seed)
    probe = SublistProbe()
    here: dict[int, int] = {}  # number of a subscription → that of its group
    there: dict[int, int] = {}  # number of a group → its members elsewhere
    for number in range(1500):
        grows = dice.random() < (0.7 if number % 500 < 300 else 0.2)
        group = dice.randrange(60)
        if dice.random() < 0.3:
            members = dice.randrange(1, 4) if grows else 0
            probe.set_remote_queue(3, pattern, b"q%d" % group, members)
            there[group] = members
        elif grows or not here:
            probe.subscribe(number, pattern, b"q%d" % group)
            here[number] = group
        else:
            one = dice.choice(list(here))
            probe.unsubscribe(one)
            del here[one]
        if number % 10 == 0 or number % 500 > 480:
            expected = {
                b"q%d" % group: (
                    sorted(one for one, its in here.items() if its == group),
                    {3: there[group]} if there.get(group) else {},
                )
                for group in {*here.values(), *(one for one, members in there.items() if members)}
            }
            assert probe.match(b"a")["queues"] == expected
    probe.drop_remote(3)
    for one in here:
        probe.unsubscribe(one)
    counts = probe.counts
    assert [counts[name] for name in ("queue_names", "wide", "literals", "patterns")] == [0, 0, 0, 0]


def test_a_group_costs_the_same_however_many_others_its_subject_has():
    def cost(subjects: int) -> float:
        probe = SublistProbe()
        began = time.thread_time()
        for number in range(20_000):
            for which in range(2):  # the second time the group's name is known
                probe.subscribe(2 * number + which, b"%d.%d" % (which, number % subjects), b"q%d" % number)
        for number in range(40_000):
            probe.unsubscribe(number)
        return time.thread_time() - began

    apart, together = (min(cost(subjects) for _ in range(3)) for subjects in (1000, 1))
    assert together < 8 * apart  # (of 1,000 subjects each has 20; it was 60 times as much)


def test_churn_of_inboxes_leaves_a_steady_subject_in_the_cache():
    probe = SublistProbe()
    probe.subscribe(0, b"steady.>")
    probe.match(b"steady.subject")
    for i in range(1, 2000):
        probe.subscribe(i, b"_INBOX.%d.*" % i)
        probe.unsubscribe(i)
    before = probe.counts["builds"]
    assert plain(probe, b"steady.subject") == [0]
    # A slot of the counters may be shared by accident, once in 4,096; 2,000 churns then spoil the answer once.
    assert probe.counts["builds"] - before <= 1


def test_the_cache_is_bounded_in_entries():
    probe = SublistProbe()
    most = probe.counts["most_cached"]
    for i in range(most + 20_000):
        probe.match(b"s.%d" % i)
    counts = probe.counts
    assert counts["builds"] == most + 20_000
    assert most // 2 < counts["cached"] <= most


def test_the_cache_is_bounded_in_bytes():
    probe = SublistProbe()
    long = b"x" * 30_000
    for i in range(2000):
        probe.match(b"%s.%d" % (long, i))
    counts = probe.counts
    assert counts["most_cache_bytes"] * 0.9 < counts["cache_bytes"] <= counts["most_cache_bytes"]
    assert counts["cached"] < 2000


def test_an_answer_larger_than_the_bound_is_given_all_the_same():
    probe = SublistProbe()
    subject = b"x" * 120
    for i in range(230_000):
        probe.subscribe(i, subject)
    assert len(plain(probe, subject)) == 230_000  # of 156 bytes each: 36 MB; twice that does not fit
    probe.match(b"a")
    assert len(plain(probe, subject)) == 230_000
    for i in range(230_000, 690_000):
        probe.subscribe(i, subject)
    assert len(plain(probe, subject)) == 690_000
    assert probe.counts["cached"] == 1  # it alone, past the bound
    assert len(plain(probe, subject)) == 690_000
    probe.match(b"a")
    assert probe.counts["cache_bytes"] <= probe.counts["most_cache_bytes"]


def test_a_million_literals_cost_a_publish_no_more_than_one():
    """Cost is counted, not timed: what a match of one subject looks at."""
    probe = SublistProbe()
    for i in range(1_000_000):
        probe.subscribe(i, b"device.%d.status" % i)
    assert probe.counts["literals"] == 1_000_000
    assert probe.counts["patterns"] == 0
    subjects = [b"device.%d.status" % i for i in range(0, 1_000_000, 997)]
    probed = [probe.slots_probed(subject) for subject in subjects]
    assert sum(probed) / len(probed) < 8  # to the end of a run; 8.5 is what a table three quarters full would give
    for i, subject in zip(range(0, 1_000_000, 997), subjects, strict=True):
        assert plain(probe, subject) == [i]
    assert probe.counts["steps"] == len(subjects)  # the root, once each: there is no pattern below it


def test_wildcards_cost_a_publish_only_what_shares_its_tokens():
    probe = SublistProbe()
    for i in range(100_000):
        probe.subscribe(i, b"device.%d.*" % i)
    asked = range(0, 100_000, 997)
    for i in asked:
        assert plain(probe, b"device.%d.status" % i) == [i]
    assert probe.counts["steps"] == 3 * len(asked)  # the root, `device`, its number; the star is the end


def test_a_subject_of_very_many_tokens():
    probe = SublistProbe()
    deep = b".".join([b"a"] * 30_000)
    probe.subscribe(1, deep)
    probe.subscribe(2, b".".join([b"*"] * 30_000))
    probe.subscribe(3, b".".join([b"*"] * 29_999 + [b">"]))
    probe.set_remote(1, b".".join([b"*"] * 29_999 + [b">"]), True)
    assert probe.match(deep) == {"plain": [1, 2, 3], "queues": {}, "remote": {1}}
    probe.drop_remote(1)
    for number in (1, 2, 3):
        probe.unsubscribe(number)
    assert probe.match(deep) == {"plain": [], "queues": {}, "remote": set()}
    assert probe.counts["patterns"] == 0


def test_when_a_shard_that_wanted_very_much_goes_what_others_want_stays():
    """So much that all tables of literal subjects are split: some become one again meanwhile, others are gone."""
    probe = SublistProbe()
    subjects = [b"s.%d" % number for number in range(120_000)]
    for subject in subjects:
        probe.set_remote(1, subject, True)
    for subject in subjects[::500]:
        probe.set_remote(2, subject, True)
    for number in range(0, len(subjects), 700):
        probe.subscribe(number, subjects[number])
    probe.drop_remote(1)
    wanted = {*range(0, len(subjects), 500), *range(0, len(subjects), 700)}
    assert probe.counts["literals"] == len(wanted)
    for number in [*wanted, *range(1, len(subjects), 97)]:
        found = probe.match(subjects[number])
        assert found["remote"] == ({2} if number % 500 == 0 else set()), number
        assert found["plain"] == ([number] if number % 700 == 0 else []), number
    probe.drop_remote(2)
    for number in range(0, len(subjects), 700):
        probe.unsubscribe(number)
    assert probe.counts["literals"] == 0
