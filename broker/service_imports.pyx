# cython: language_level=3, boundscheck=False, wraparound=False
"""Service imports: requests from one account to another, and the replies to them.

The exporting account sees a generated reply subject, never the requestor's. A request is kept until its reply has come
(singleton), an empty reply (stream, chunked), or until the export's threshold has passed. All of it happens on the
requestor's shard; other shards see ordinary messages of the exporting account, and send replies here. It knows no
client and no clock; the time is the outbox's now_us. Cost: some 3 µs per request.
"""

from libc.string cimport memcpy

from gnatswarm.broker.connection cimport ClientConnection
from gnatswarm.broker.fanout cimport (
    ORIGIN_ACCOUNT, ORIGIN_SIBLING, ORIGIN_SIBLING_ACCOUNT, add_outcome, fits_line, no_outcome, rewritten)
from gnatswarm.broker.interest cimport MOST_SHARDS
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.rules cimport RESPONSE_SINGLETON, RESPONSE_STREAM, Mapping
from gnatswarm.broker.entry cimport Extras, extras_of
from gnatswarm.broker.sublist cimport OWNER_AWAITED, PREFIX_BYTES
from gnatswarm.broker.traced cimport asks_for_trace, give_traced
from gnatswarm.broker.transform cimport Transform
from gnatswarm.broker.word cimport SLACK, hash_bytes, likely, unlikely

import base64
import json
import os
from heapq import nsmallest
from itertools import islice

from gnatswarm.broker import due_replies, message_trace, service_latency
from gnatswarm.broker.due_replies import DueReply
from gnatswarm.broker.service_latency import Measured

# As on nats-server.
DEFAULT_THRESHOLD_US = 120_000_000
MOST_LANES = 0xFFFF
# Lanes that sweep() looks at, some 0.5 ms: all of them in turn.
MOST_LANES_SWEPT = 5000
# Measured requests that sweep() looks at: some 0.2 ms of each 100.
MOST_LOOKED_AT = 500
# Requests that due() looks at for a page, some 2 ms, or 20 if each is of another account; and the texts of those that
# it lists, about.
MOST_LISTED_FROM = 50_000
MOST_LISTED_BYTES = 1024 * 1024


cdef class Response:
    """A possible reply: who waits for it, on which subject, and since when."""


cdef class Lane:
    """Requests that one account has caused, and whose replies may take as long."""

    def __cinit__(self, bytes account=b"", uint64_t threshold_us=0):
        self.due = {}
        self.account = account
        self.threshold_us = threshold_us


cdef class ReplyTable:
    """The requests with one prefix that may still get a reply."""

    def __cinit__(self, bytes prefix not None, uint64_t times=0):
        self.prefix = prefix
        self.times = times
        self.lanes = [Lane(b"", DEFAULT_THRESHOLD_US)]   # of the accounts for which there is no number left
        self.numbers = {}
        self.unused = set()

    cdef uint32_t count(self) except? 0xFFFFFFFF:
        cdef uint32_t n = 0
        for lane in self.lanes:
            n += <uint32_t>len((<Lane>lane).due)
        return n

    cdef int number_of(self, bytes account, uint64_t threshold_us) except -1:
        """The number of the lane of an account and a threshold."""
        cdef tuple whose = (account, threshold_us)
        cdef object found = self.numbers.get(whose)
        cdef int number
        if likely(found is not None):
            return found
        if self.unused:
            number = self.unused.pop()
            self.lanes[number] = Lane(account, threshold_us)
        elif len(self.lanes) < MOST_LANES:
            number = <int>len(self.lanes)
            self.lanes.append(Lane(account, threshold_us))
        else:
            return 0
        self.numbers[whose] = number
        return number

    cdef int give_back(self, Lane lane) except -1:
        """Accounts may come and go for months, and all lanes are looked at often."""
        cdef tuple whose = (lane.account, lane.threshold_us)
        cdef object number = self.numbers.get(whose)
        if number is not None and self.lanes[number] is lane:
            del self.numbers[whose]
            self.lanes[number] = Lane()   # without the room for all that waited once
            self.unused.add(number)
        return 0

    cdef int trim(self) except -1:
        """Forget the lanes behind the last whose number is somebody's."""
        while len(self.lanes) - 1 in self.unused:
            self.unused.discard(len(self.lanes) - 1)
            self.lanes.pop()
        return 0

    cdef Lane lane_of(self, bytes reply):
        try:
            number = int(reply[PREFIX_BYTES:PREFIX_BYTES + 4], 16)
        except ValueError:
            return None
        return self.lanes[number] if 0 <= number < len(self.lanes) else None


cdef class ServiceImports(AccountGate):
    """One for each shard. `adds_headers`: requests say which account they come from, in a header."""

    def __cinit__(self, Fanout fanout not None, int shard, *, bint adds_headers=True):
        if not 0 <= shard < MOST_SHARDS:
            raise ValueError("no such shard")
        self.fanout = fanout
        self.shard = shard
        self.own = ReplyTable(self.new_prefix())
        self.others = {}
        self.random_pool = b""
        self.adds_headers = adds_headers
        self.measured = {}
        self.looked_at = iter(())
        self.passed = []

    @property
    def reply_prefix(self) -> bytes:
        """The prefix of this shard's generated reply subjects."""
        return self.own.prefix

    def new_prefix(self) -> bytes:
        """Another one at each start: replies to requests that nobody has taken over are dropped."""
        return b"_R_.%02x%s." % (self.shard, base64.urlsafe_b64encode(os.urandom(6)).replace(b"-", b"A"))

    @property
    def waiting(self) -> int:
        """Requests that may still get a reply."""
        return self.n_waiting

    def due(self, bytes exporter not None, int most) -> list:
        """Requests to this account that may still get a reply, the longest-waiting ones first, at most so many.

        Each as generated reply subject, the importer's account, where it waits for the reply, and Measured or None.
        There are fewer where more than MOST_LISTED_FROM wait, or texts are longer than MOST_LISTED_BYTES.
        """
        cdef Py_ssize_t left = MOST_LISTED_FROM, share, n
        cdef size_t text_bytes = 0, n_left, i = 0
        cdef bint are_more = self.n_waiting > <uint64_t>left
        cdef Response response
        cdef list lanes = [lane for lane in self.all_lanes() if (<Lane>lane).due]
        cdef list listed = []
        cdef dict due
        if are_more:   # what those with few leave is for those with many
            lanes = [lane for _, _, lane in sorted([(len((<Lane>lane).due), i, lane) for i, lane in enumerate(lanes)])]
        n_left = len(lanes)
        for one in lanes:
            if left <= 0:
                break
            due = (<Lane>one).due
            share = max(<Py_ssize_t>1, left // <Py_ssize_t>n_left) if are_more else left
            n_left -= 1
            n = 0
            for made, item in due.items():
                left -= 1
                share -= 1
                response = <Response>item
                if response.exporter.account == exporter:
                    listed.append((response.asked_us, i, made, response))
                    i += 1
                    n += 1
                if n == most or share == 0:
                    break
        found = []
        for _, _, made, item in nsmallest(most, listed):
            response = <Response>item
            text_bytes += response.text_bytes
            if text_bytes > <size_t>MOST_LISTED_BYTES:
                break
            found.append((made, response.importer.account, response.reply, response.measured))
        return found

    cdef list all_lanes(self):
        return [lane for table in (self.own, *self.others.values()) for lane in (<ReplyTable>table).lanes]

    def sweep(self):
        """Forgets requests whose threshold has passed; to be called regularly."""
        cdef uint64_t now = self.fanout.box.now_us
        cdef Response response
        cdef Lane lane
        cdef list lanes = self.all_lanes()
        cdef size_t i, n = min(<size_t>len(lanes), <size_t>MOST_LANES_SWEPT)
        for i in range(self.n_swept, self.n_swept + n):
            lane = <Lane>lanes[i % <size_t>len(lanes)]
            over = []
            for reply, found in lane.due.items():
                response = <Response>found
                if now - response.asked_us <= lane.threshold_us:
                    break
                over.append(reply)
            for reply in over:
                response = <Response>lane.due[reply]
                self.report(response.measured, service_latency.TIMED_OUT, None, 0)
                self.forget(reply)
            self.n_expired += <uint64_t>len(over)
            if not lane.due:
                self.own.give_back(lane)
        self.n_swept = (self.n_swept + n) % <size_t>len(lanes)
        self.own.trim()
        if self.others and self.prefixes is not None:
            self.prefixes.look_for_empty()
        if self.measured and not (self.reroutes is not None and self.reroutes.mesh.out_of_step):
            self.look_for_lost_interest()

    def on_client_gone(self, uint64_t cid, most) -> bool:
        """Nobody waits for the replies to its requests any more. False: there were more, so call it again."""
        for reply in list(islice(self.measured.get(cid, ()), most)):
            lane = self.lane_of(reply)
            if lane is None:   # it is being handed over: the next shard looks for who wants it
                self.measure_no_more(cid, reply)
                continue
            self.report((<Response>(<Lane>lane).due[reply]).measured, service_latency.REQUESTOR_GONE, None, 0)
            self.forget(reply)
        return cid not in self.measured

    # ---- called by users of fan-out

    cdef int on_nobody(self, bytes reply) except -1:
        cdef Lane lane = self.lane_of(reply)
        cdef Response response = None if lane is None else lane.due.get(reply)
        if response is not None:
            self.report(response.measured, service_latency.NO_RESPONDER, None, 0)
            self.forget(reply)
        return 0

    cdef void leave(self, Sublist sublist, Entry *entry, Publish *message, object client, Outcome *outcome) noexcept:
        try:
            self.leave_from(sublist, entry, message, client, outcome)
        except MemoryError:
            pass

    cdef int leave_from(self, Sublist sublist, Entry *entry, Publish *message, object client,
                        Outcome *outcome) except -1:
        cdef bytes subject = entry.text[:entry.subject_size]
        cdef const Extras *extras = extras_of(entry)
        cdef bint is_reply = extras.is_reply
        cdef list rules = []
        cdef uint32_t i
        if self.depth == MOST_CROSSINGS:
            return 0
        if message.origin != ORIGIN_SIBLING and message.origin != ORIGIN_SIBLING_ACCOUNT:
            for i in range(extras.n_imports):   # (the entry may be gone after the first)
                rule = sublist.rules[extras.imports[i]]
                if (<ServiceImport>rule).is_for(subject):
                    rules.append(rule)
        self.depth += 1
        try:
            if is_reply and unlikely(self.others) and self.is_awaited(sublist, subject) \
                    and not (self.fanout.trace is not None and self.fanout.trace.is_only):
                self.reroutes.keep_answer(sublist, subject, message, client)
                outcome.deliveries += 1   # (it will be, or nobody knows)
            elif is_reply:
                self.respond(sublist, subject, message, client, outcome)
            for rule in rules:
                if (<ServiceImport>rule).export in self.passed:   # a circle ends here, as on nats-server
                    continue
                self.passed.append((<ServiceImport>rule).export)
                try:
                    self.request(<ServiceImport>rule, subject, message, client, outcome)
                finally:
                    self.passed.pop()
        finally:
            self.depth -= 1
        return 0

    cdef Entry *map(self, Sublist sublist, Entry *entry, bint *is_random) noexcept:
        cdef Mapping mapping = <Mapping>sublist.rules[extras_of(entry).mapping]
        cdef Transform chosen
        cdef bytearray room
        cdef size_t size
        cdef uint8_t *to
        is_random[0] = not mapping.is_constant
        chosen = mapping.choose(sublist.random())
        if chosen is None:
            return NULL
        try:
            room = bytearray(chosen.room_for(entry.subject_size) + SLACK)
        except MemoryError:
            return NULL
        to = <uint8_t *><char *>room
        size = chosen.apply(entry.text, entry.subject_size, to)
        if unlikely(self.fanout.trace is not None):
            self.fanout.trace.mapped(to[:size])
        return sublist.find(to, size, hash_bytes(to, size, sublist.seed))

    # ---- requests and replies

    cdef int enter(self, Sublist sublist, bytes subject, Publish *message, Outcome *outcome) except -1:
        """Publish a message of another account in this one; what became of it is added to `outcome`."""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *at = padded
        cdef size_t size = len(subject)
        cdef Entry *entry = sublist.find(at, size, hash_bytes(at, size, sublist.seed))
        cdef bint is_random
        cdef Outcome here
        if entry != NULL and entry.extras_at and extras_of(entry).mapping >= 0:
            entry = self.map(sublist, entry, &is_random)
            if entry != NULL:
                size = entry.subject_size
                padded = entry.text[:size] + bytes(SLACK)
                at = padded
        if entry == NULL or not fits_line(len(sublist.account), size, message.reply.size):
            return 0
        if entry.crosses:
            self.leave_from(sublist, entry, message, None, outcome)
            entry = sublist.find(at, size, hash_bytes(at, size, sublist.seed))   # other match results were built since
            if entry == NULL:
                return 0
        no_outcome(&here)
        if unlikely(self.fanout.trace is not None):
            give_traced(self.fanout, sublist, entry, message, NULL, &here)
        else:
            self.fanout.deliver_across(sublist, entry, message, &here)
        if unlikely(entry.slow_until_us > self.fanout.box.now_us) and here.touched:
            # A subscriber on a sibling is behind: make the publisher wait as for a local one. (It sees only the match
            # result of its own subject.)
            here.stalls = True
        add_outcome(outcome, &here)
        return 0

    cdef int request(self, ServiceImport rule, bytes subject, Publish *message, object client,
                     Outcome *outcome) except -1:
        """Send a request to an imported service."""
        cdef bytes reply = None
        cdef bytes note = b""
        cdef uint64_t rtt_us = 0
        cdef dict requestor = None
        cdef object measured = None
        cdef object trace = self.fanout.trace
        cdef bytes local = subject
        cdef bytes told_before = self.told
        cdef bytes cause_before = self.cause
        cdef Outcome there
        if rule.renaming is not None:
            subject = rule.renaming(subject)
        if trace is not None:
            trace.imported(rule.exporter.account, local, subject)
            if trace.is_only:
                if rule.traces:
                    there = self.send_traced(rule, subject, message, None, b"")
                    add_outcome(outcome, &there)
                return 0
        if client is not None:
            rtt_us = (<ClientConnection>client).rtt_us
            if rule.shares and self.describe is not None and (<ClientConnection>client).session is not None:
                requestor = self.describe((<ClientConnection>client).session)
        elif self.asker is not None:
            rtt_us = self.asker.rtt_us
            if rule.shares:
                requestor = self.asker.requestor()
        if rule.latency is not None and self.on_latency is not None:
            measured = self.measure(rule, requestor, message, client)
        if message.reply.size:
            reply = self.expect(rule.importer, rule.exporter, message.reply.at[:message.reply.size],
                                rule.response_kind, rule.threshold_us, measured)
        else:
            self.report(measured, service_latency.NO_REPLY_SUBJECT, None, 0)
        if self.adds_headers:
            note = rule.note
            if told_before is not None:
                note = _through(told_before, rule.importer.account)
            elif requestor is not None:
                note = b"Nats-Request-Info: %s\r\n" % json.dumps(requestor, separators=(",", ":")).encode()
            elif rtt_us:
                note = b'%s,"rtt":%d}\r\n' % (note[:len(note) - 3], rtt_us * 1000)
            self.told = note
        self.n_requests += 1
        if cause_before is None:
            self.cause = rule.importer.account
        try:
            if likely(trace is None):
                there = self.send(rule.exporter, subject, message, reply, note)
            elif rule.traces:
                there = self.send_traced(rule, subject, message, reply, note)
            else:
                there = self.send_untraced(rule.exporter, subject, message, reply, note)
        finally:
            self.told = told_before
            self.cause = cause_before
        if there.deliveries == 0 and there.touched == 0 and reply is not None:
            self.report(measured, service_latency.NO_RESPONDER, None, 0)
            self.forget(reply)   # there is no service to reply to it
        add_outcome(outcome, &there)
        return 0

    cdef int respond(self, Sublist sublist, bytes subject, Publish *message, object client,
                     Outcome *outcome) except -1:
        """Deliver a reply on a reply subject generated here."""
        cdef Lane lane = self.lane_of(subject)
        cdef Response response
        cdef bytes reply = None
        cdef bytes cause_before = self.cause
        cdef uint64_t started_ns = 0
        cdef Outcome there
        if lane is None:
            return 0
        response = <Response>lane.due.get(subject)
        if response is None:
            return 0
        if unlikely(response.exporter is not sublist):
            if response.measured is not None and sublist.account == self.system_account:
                try:
                    response.responder = json.loads(message.payload[message.header_size:message.size])
                except ValueError:   # no shard has said that
                    pass
            return 0
        if self.fanout.box.now_us - response.asked_us > lane.threshold_us:
            self.report(response.measured, service_latency.TIMED_OUT, None, 0)
            self.forget(subject)
            self.n_expired += 1
            return 0
        if unlikely(self.fanout.trace is not None):
            self.fanout.trace.imported(response.importer.account, subject, response.reply)
            if self.fanout.trace.is_only:
                return 0
        if response.kind == RESPONSE_SINGLETON or message.size == 0:
            self.forget(subject)
        if message.reply.size:   # the requestor may reply to this reply
            reply = self.expect(response.exporter, response.importer, message.reply.at[:message.reply.size],
                                RESPONSE_SINGLETON, DEFAULT_THRESHOLD_US, None)
        self.n_replies += 1
        if response.measured is not None and self.clock_ns is not None:
            started_ns = self.clock_ns()
        if cause_before is None:
            self.cause = response.exporter.account
        try:
            if unlikely(self.fanout.trace is not None):
                there = self.send_untraced(response.importer, response.reply, message, reply, b"")
            elif unlikely(message.header_size != 0) and self.fanout.tracing is not None \
                    and asks_for_trace(message.payload, message.header_size, sublist.traces_parents) \
                    and message_trace.may_lead_somewhere(message.payload[:message.header_size]):
                # It was kept back, and its document has left: nobody may trace it in the requestor's account.
                there = self.send(response.importer, response.reply, message, reply, b"", message_trace.DISABLED)
            else:
                there = self.send(response.importer, response.reply, message, reply, b"")
        finally:
            self.cause = cause_before
        if response.measured is not None:   # (a singleton: this was its only reply)
            self.report(response.measured, service_latency.REPLIED,
                        (<ClientConnection>client).session if client is not None else response.responder,
                        self.clock_ns() - started_ns if self.clock_ns is not None else 0)
        if there.deliveries == 0 and there.touched == 0:   # the requestor is gone
            self.forget(subject)
            if reply is not None:
                self.forget(reply)
        elif subject in lane.due:   # the threshold starts again, and a lane is in the order of these times
            response.asked_us = self.fanout.box.now_us
            del lane.due[subject]
            lane.due[subject] = response
        add_outcome(outcome, &there)
        return 0

    cdef Outcome send(self, Sublist sublist, bytes subject, Publish *message, bytes reply, bytes note,
                      bytes traced_to=None) except *:
        """The message with another reply subject, and `note` as the last line of its header. `traced_to`: the trace
        goes there from now on."""
        cdef Publish other
        cdef Outcome outcome
        cdef bytearray _room   # (keeps the bytes)
        cdef bytes header = message.payload[:message.header_size] if message.header_size else b""
        cdef Token to = Token(NULL, 0)
        if note:
            header = (without(header, b"nats-request-info") or b"NATS/1.0\r\n") + note + b"\r\n"
        if traced_to is not None:
            header = message_trace.with_line(header, message_trace.DESTINATION, traced_to)
        if reply is not None:
            to = Token(<const uint8_t *>reply, len(reply))
        _room = rewritten(&other, message, header, to)
        other.origin = ORIGIN_ACCOUNT
        no_outcome(&outcome)
        self.enter(sublist, subject, &other, &outcome)
        return outcome

    cdef Outcome send_traced(self, ServiceImport rule, bytes subject, Publish *message, bytes reply,
                             bytes note) except *:
        """The same of a traced request: what the exporter's shards know of it goes to a generated reply subject, which
        leads to where the trace goes here."""
        cdef object trace = self.fanout.trace
        cdef bytes before = trace.place
        cdef Outcome outcome
        trace.place = self.expect(rule.importer, rule.exporter, before, RESPONSE_STREAM, DEFAULT_THRESHOLD_US, None)
        try:
            outcome = self.send(rule.exporter, subject, message, reply, note, trace.place)
        finally:
            trace.place = before
        return outcome

    cdef Outcome send_untraced(self, Sublist sublist, bytes subject, Publish *message, bytes reply,
                               bytes note) except *:
        """The same of a traced message that goes where its trace may not follow."""
        cdef object trace = self.fanout.trace
        cdef Outcome outcome
        if trace.is_only:
            no_outcome(&outcome)
            return outcome
        self.fanout.trace = None
        try:
            outcome = self.send(sublist, subject, message, reply, note, message_trace.DISABLED)
        finally:
            self.fanout.trace = trace
        return outcome

    cdef object measure(self, ServiceImport rule, dict requestor, Publish *message, object client):
        """A Measured, if the request is one of those that the export's `latency` wants to know of; or None."""
        cdef object headers = {}
        cdef uint64_t rtt_us
        if (rule.importer.random() >> 32) % 100 >= <uint64_t><int>rule.latency[1]:
            headers = service_latency.traced(message.payload[:message.header_size]) if message.header_size else None
            if headers is None:
                return None
        if requestor is None:
            requestor = {"acc": rule.importer.account.decode("utf-8", "replace")}
            rtt_us = (<ClientConnection>client).rtt_us if client is not None else 0
            if rtt_us:
                requestor["rtt"] = rtt_us * 1000
        return Measured(rule.exporter.account, rule.latency[0], requestor, headers,
                        (<ClientConnection>client).cid if client is not None else 0, self.fanout.box.now_us)

    cdef int report(self, object measured, int status, object responder, uint64_t system_ns) except -1:
        if measured is not None and self.on_latency is not None:
            self.on_latency(measured, status, responder, self.fanout.box.now_us - <uint64_t>measured.asked_us,
                            system_ns)
        return 0

    cdef bint is_wanted(self, Sublist sublist, bytes subject) except -1:
        """Would a message reach anybody?"""
        cdef bytes padded = subject + bytes(SLACK)
        cdef const uint8_t *at = padded
        cdef Entry *entry = sublist.find(at, len(subject), hash_bytes(at, len(subject), sublist.seed))
        return entry == NULL or entry.n_plain or entry.n_choices or entry.remote or entry.crosses

    cdef int look_for_lost_interest(self) except -1:
        """Ends measured requests whose requestor has unsubscribed from the reply subject: some of them, in turn."""
        cdef Response response
        cdef Lane lane
        cdef int i
        for i in range(MOST_LOOKED_AT):
            reply = next(self.looked_at, None)
            if reply is None and i == 0:
                self.looked_at = iter([reply for replies in self.measured.values() for reply in replies])
                reply = next(self.looked_at, None)
            if reply is None:
                return 0
            lane = self.lane_of(reply)
            response = <Response>lane.due.get(reply) if lane is not None else None
            if response is not None and response.was_wanted and not self.is_wanted(response.importer, response.reply):
                self.report(response.measured, service_latency.REQUESTOR_GONE, None, 0)
                self.forget(reply)
        return 0

    cdef bytes expect(self, Sublist importer, Sublist exporter, bytes reply, int kind, uint64_t threshold_us,
                      object measured):
        """Generate the reply subject for the exporter."""
        cdef Response response = Response()
        cdef bytes made
        cdef ReplyTable own = self.own
        cdef int number = own.number_of(importer.account if self.cause is None else self.cause, threshold_us)
        # 96 random bits: it cannot be guessed from another one.
        made = b"%s%04x%s" % (own.prefix, number, base64.urlsafe_b64encode(self.random_bytes(12)))
        if measured is not None:
            made += service_latency.MEASURED
        response.importer = importer
        response.exporter = exporter
        response.reply = reply
        response.kind = kind
        response.asked_us = self.fanout.box.now_us
        response.measured = measured
        response.was_wanted = measured is not None and self.is_wanted(importer, reply)
        self.add(<Lane>own.lanes[number], made, response)
        return made

    cdef int add(self, Lane lane, bytes made, Response response) except -1:
        cdef object measured = response.measured
        if measured is not None and measured.cid:
            self.measured.setdefault(measured.cid, set()).add(made)
        response.text_bytes = <size_t>len(response.reply) + (0 if measured is None else <size_t>measured.text_bytes)
        lane.due[made] = response
        lane.text_bytes += response.text_bytes
        self.n_waiting += 1
        self.waiting_bytes += response.text_bytes
        if unlikely(self.n_waiting > MOST_RESPONSES or self.waiting_bytes > MOST_RESPONSE_BYTES):
            self.drop_oldest()
        return 0

    cdef int drop_oldest(self) except -1:
        """Of the account that has most, so that it harms no other, and of the next ones if that has few. Some at once:
        what was taken out at the beginning of a lane is in the way of each look for its oldest."""
        cdef bint are_many = self.n_waiting > MOST_RESPONSES
        cdef Py_ssize_t left = DROPPED_AT_ONCE if are_many else DROPPED_BYTES_AT_ONCE
        cdef Lane lane
        for one in self.fullest(are_many):
            lane = <Lane>one
            for reply in list(islice(lane.due, min(DROPPED_AT_ONCE, (<Py_ssize_t>len(lane.due) + 1) // 2))):
                left -= 1 if are_many else <Py_ssize_t>(<Response>lane.due[reply]).text_bytes
                self.let_go(lane, reply)
                self.n_expired += 1
                if left <= 0:
                    return 0
        return 0

    cdef list fullest(self, bint are_many):
        """The lanes of the account with most requests, or bytes, and then those of the next ones."""
        cdef Lane lane
        cdef dict by_account = {}
        cdef list lanes = []
        cdef size_t n, i = 0
        for one in self.all_lanes():
            lane = <Lane>one
            n = len(lane.due) if are_many else lane.text_bytes
            if n:
                by_account[lane.account] = by_account.get(lane.account, 0) + n
                lanes.append((n, lane))
        most = []
        for n, lane in lanes:
            most.append((by_account[lane.account], n, i, lane))
            i += 1
        most.sort(reverse=True)
        return [one[3] for one in most]

    cdef ReplyTable table_of(self, bytes reply):
        if likely(not self.others) or reply.startswith(self.own.prefix):
            return self.own
        return self.others.get(reply[:PREFIX_BYTES])

    cdef Lane lane_of(self, bytes reply):
        cdef ReplyTable table = self.table_of(reply)
        return None if table is None else table.lane_of(reply)

    cdef int forget(self, bytes reply) except -1:
        cdef Lane lane = self.lane_of(reply)
        return 0 if lane is None else self.let_go(lane, reply)

    cdef int let_go(self, Lane lane, bytes reply) except -1:
        cdef Response response
        cdef object found = lane.due.pop(reply, None)
        if found is None:
            return 0
        self.n_waiting -= 1
        response = <Response>found
        self.waiting_bytes -= response.text_bytes
        lane.text_bytes -= response.text_bytes
        if response.measured is not None and response.measured.cid:
            self.measure_no_more(response.measured.cid, reply)
        return 0

    cdef int measure_no_more(self, uint64_t cid, bytes reply) except -1:
        cdef set replies = self.measured.get(cid)
        if replies is not None:
            replies.discard(reply)
            if not replies:
                del self.measured[cid]
        return 0

    # ---- tables that change their shard

    cdef bint is_awaited(self, Sublist sublist, bytes subject):
        return sublist.owners.get(subject[:PREFIX_BYTES]) == OWNER_AWAITED

    cdef int renew(self) except -1:
        self.own.takes_from = ~<uint64_t>0
        self.others[self.own.prefix] = self.own
        self.own = ReplyTable(self.new_prefix())
        return 0

    cdef int add_table(self, bytes prefix, uint64_t times) except -1:
        self.others[prefix] = ReplyTable(prefix, times)
        return 0

    cdef int put_in(self, bytes prefix, tuple replies, object mesh) except -1:
        cdef ReplyTable table = <ReplyTable>self.others[prefix]
        cdef Response response
        cdef Lane lane
        cdef int number
        for one in replies:
            number = int(one.subject[PREFIX_BYTES:PREFIX_BYTES + 4], 16)
            while len(table.lanes) <= number:
                table.lanes.append(Lane())
            lane = <Lane>table.lanes[number]
            if not lane.due:
                lane.account = one.importer   # (of a chain of imports the first is the oldest)
            lane.threshold_us = one.threshold_us
            response = Response()
            response.importer = mesh.account(one.importer)
            response.exporter = mesh.account(one.exporter)
            response.reply = one.reply
            response.kind = one.kind
            response.asked_us = one.asked_us
            response.measured = one.measured
            response.was_wanted = one.measured is not None and self.is_wanted(response.importer, one.reply)
            self.add(lane, one.subject, response)
        return 0

    cdef list take_out(self, ReplyTable table, Py_ssize_t most, size_t most_bytes):
        cdef Response response
        cdef Lane lane
        cdef list found = []
        cdef size_t size = 0
        for held in table.lanes:
            lane = <Lane>held
            if not lane.due:
                continue
            if len(found) >= most:
                break
            for subject, item in list(islice(lane.due.items(), most - <Py_ssize_t>len(found))):
                if size >= most_bytes:
                    return found
                response = <Response>item
                one = DueReply(subject, response.importer.account, response.exporter.account, response.reply,
                               response.kind, response.asked_us, lane.threshold_us, response.measured)
                found.append(one)
                size += <size_t>due_replies.size_of(one)
                self.let_go(lane, subject)
        return found

    cdef int drop_table(self, ReplyTable table) except -1:
        for lane in table.lanes:
            for subject in list((<Lane>lane).due):
                self.let_go(<Lane>lane, subject)
        return 0

    cdef bytes random_bytes(self, int n):
        """From a pool: a system call for each would cost more than all the rest."""
        if self.random_at + n > <int>len(self.random_pool):
            self.random_pool = os.urandom(4096)
            self.random_at = 0
        self.random_at += n
        return self.random_pool[self.random_at - n:self.random_at]


cdef bytes _through(bytes note, bytes account):
    """What is said of who asks when the request goes on to a service that this account imports: who asked first, and
    that it was a request to this account."""
    cdef dict told = {}
    for name, value in json.loads(note.partition(b" ")[2]).items():
        told[name] = value
        if name == "acc":
            told["svc"] = ""   # behind it, as in nats-server
    told["svc"] = account.decode("utf-8", "replace")
    return b"Nats-Request-Info: %s\r\n" % json.dumps(told, separators=(",", ":")).encode()


cdef inline bint is_blank(uint8_t one) noexcept nogil:
    return one == c' ' or one == c'\t' or one == c'\v' or one == c'\f'


cdef bint is_field(const uint8_t *at, const uint8_t *end, const uint8_t *name, size_t size) noexcept nogil:
    """Is it a line of this name, which is in lower case?"""
    cdef size_t i
    while at < end and is_blank(at[0]):
        at += 1
    if <size_t>(end - at) < size:
        return False
    for i in range(size):
        if at[i] | 0x20 != name[i]:
            return False
    at += size
    while at < end and is_blank(at[0]):
        at += 1
    return at == end or at[0] == c':'


cdef bytes without(bytes header, bytes name):
    """A header block without empty lines, so that what follows is part of it, and without a field. Who receives it may
    take LF or CR alone for the end of a line, as Go's and Python's readers of headers do."""
    cdef const uint8_t *at = header
    cdef const uint8_t *end = at + len(header)
    cdef const uint8_t *line_end
    cdef bytearray kept = bytearray(2 * len(header) + 2)   # (a line end may be one byte longer then)
    cdef uint8_t *begun = <uint8_t *><char *>kept
    cdef uint8_t *to = begun
    cdef bint has_feed = False
    while at < end:
        line_end = at
        while line_end < end and line_end[0] != c'\r' and line_end[0] != c'\n':
            line_end += 1
        if line_end > at and not is_field(at, line_end, name, len(name)):
            if to > begun:
                memcpy(to, b'\r\n', 2)
                to += 2 if has_feed else 1
            memcpy(to, at, line_end - at)
            to += line_end - at
            has_feed = False
        at = line_end
        while at < end and (at[0] == c'\r' or at[0] == c'\n'):
            has_feed = has_feed or at[0] == c'\n'
            at += 1
    if to == begun:
        return b""
    memcpy(to, b'\r\n', 2)
    return begun[:to + 2 - begun]
