# cython: language_level=3, boundscheck=False, wraparound=False
"""A client connection as a record (broker.frozen), and back.

Reading it off changes nothing; putting it in needs a fresh connection, whose session, permissions and limits are the
caller's. It knows no socket, and nothing of shards: moving subscriptions between shards is broker.moves. What is
forgotten: the subject of its latest message (`published_to`), until the next one.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from gnatswarm.broker.interest cimport NO_MAX, QueueName, Sub, take_marked
from gnatswarm.broker.outbuf cimport CLOSE_NONE, Chunk, OutBuf, blob_new, out_append, out_call, out_pending
from gnatswarm.broker.parser cimport Token
from gnatswarm.broker.peer cimport HOLD_ENDING, HOLD_FENCE, HOLD_LINK, HOLD_LOGIN, HOLD_REPLY
from gnatswarm.broker.subject cimport SUBJECT_BAD, subject_kind
from gnatswarm.broker.table cimport slot_item, table_insert
from gnatswarm.broker.talk cimport talk_resume
from gnatswarm.broker.shadows cimport Shadows
from gnatswarm.broker.word cimport SLACK, hash_bytes

from gnatswarm.broker import frozen as records


cdef str why_not(ClientConnection client):
    if client.is_closing or client.out.close_reason != CLOSE_NONE:
        return "it is being closed"
    if client.is_own:
        return "it is the broker's own"
    if client.must_authenticate or client.holds & HOLD_LOGIN:
        return "it has not logged in yet"
    if client.holds & HOLD_ENDING:
        return "subscriptions of its are being ended"
    if client.holds & HOLD_FENCE:
        return "its PONG is due"
    if client.holds & HOLD_LINK:
        return "a link between shards is missing"
    if client.holds & HOLD_REPLY:
        return "it has replied to a request that is being handed over to its shard"
    if client.n_formers:
        return "a queue subscription that it has ended lingers"
    if client.is_in_doubt:
        return "messages of its may have been lost with a link"
    return None


cdef bytes unsent_of(ClientConnection client):
    cdef OutBuf *out = &client.out
    cdef const Chunk *chunk = out.head
    cdef size_t end
    cdef list parts = []
    while chunk != NULL:
        end = chunk.end if chunk != out.tail or chunk.blob != NULL else <size_t>(out.pos - chunk.data)
        parts.append((chunk.data + chunk.start)[:end - chunk.start])
        chunk = chunk.next
    return b"".join(parts)


cdef object subscription_of(ClientConnection client, const Sub *sub):
    cdef uint8_t[256] small
    cdef size_t size = client.sublist.subject_of(sub.node, small, sizeof(small))
    cdef bytearray large
    cdef bytes subject, queue = b""
    if size <= sizeof(small):
        subject = small[:size]
    else:
        large = bytearray(size)
        client.sublist.subject_of(sub.node, <uint8_t *><char *>large, size)
        subject = bytes(large)
    if sub.group != NULL:
        queue = (<const uint8_t *>sub.group.name + sizeof(QueueName))[:sub.group.name.key.size]
    return records.FrozenSubscription((<const uint8_t *>sub + sizeof(Sub))[:sub.key.size], subject, queue,
                                      sub.delivered, 0 if sub.max_msgs == NO_MAX else sub.max_msgs)


cdef tuple subscriptions_of(ClientConnection client):
    cdef uint32_t i
    if client.subs.slots == NULL:
        return ()
    return tuple([subscription_of(client, <Sub *>slot_item(client.subs.slots[i]))
                  for i in range(client.subs.mask + 1) if client.subs.slots[i]])


def freeze(ClientConnection client not None):
    """Everything that the engine knows of the connection, as a FrozenClient; the connection stays as it is.

    The caller ends it (leave()) or goes on with it. Its messages must be acknowledged by siblings before they are
    followed by others from elsewhere: broker.moves sees to that. RecordRefused, with the reason, where it cannot be
    written down now: it is closing, has not logged in, waits for its PONG or for a link, or has a queue
    subscription that lingers.
    """
    cdef str why = why_not(client)
    cdef bytes unread = b""
    cdef list replies = []
    if why is not None:
        raise records.RecordRefused(f"client {client.cid}: {why}")
    if client.blob != NULL:
        unread = client.blob.data[:client.blob_filled]
    elif client.partial_size:
        unread = client.partial[:client.partial_size]
    if client.reply_permissions is not None:
        for reply, (asked_us, n) in client.reply_permissions.replies.items():
            replies.append(records.FrozenReply(reply, asked_us, n))
    return records.FrozenClient(
        cid=client.cid,
        account=client.sublist.account,
        subscriptions=subscriptions_of(client),
        replies=tuple(replies),
        unanswered=tuple([records.FrozenRequest(subject, reply) for subject, reply in client.unanswered or ()]),
        is_verbose=client.is_verbose,
        is_pedantic=client.is_pedantic,
        echoes=client.echoes,
        takes_headers=bool(client.out.takes_headers),
        wants_no_responders=client.wants_no_responders,
        names_subject=client.names_subject,
        protocol=client.protocol,
        unread=unread,
        half_read_bytes=client.blob.size if client.blob != NULL else 0,
        unsent=unsent_of(client),
        in_msgs=client.in_msgs,
        in_bytes=client.in_bytes,
        out_msgs=client.out.msgs,
        out_bytes=client.out.payload_bytes,
        publish_waits=client.publish_waits,
        limited_us=client.limited_us,
        limited_until_us=client.limited_until_us,
        active_us=client.active_us,
        taken_us=client.out.taken_us,
        pinged_us=client.pinged_us,
        rtt_us=client.rtt_us,
        pings_out=client.pings_out,
        was_ponged=client.was_ponged,
        info_due=client.info_due,
    )


cdef int fits(ClientConnection client, frozen) except -1:
    cdef bytes padded
    if frozen.cid != client.cid:
        raise records.RecordRefused(f"a record of client {frozen.cid}, not of client {client.cid}")
    if frozen.account != client.sublist.account:
        raise records.RecordRefused(f"client {client.cid}: a record of account {frozen.account!r}, "
                                    f"not of {client.sublist.account!r}")
    if frozen.takes_headers and not client.offers_headers:
        raise records.RecordRefused(f"client {client.cid} takes headers, which this broker does not offer")
    if client.out.max_pending and len(frozen.unsent) + out_pending(&client.out) > client.out.max_pending:
        raise records.RecordRefused(f"client {client.cid}: {len(frozen.unsent):,} bytes are unsent; "
                                    f"max_pending is {client.out.max_pending:,}")
    for one in frozen.subscriptions:
        padded = one.subject + bytes(SLACK)
        if subject_kind(<const uint8_t *>padded, len(one.subject)) == SUBJECT_BAD:
            raise records.RecordRefused(f"client {client.cid}: {one.subject!r} is no subject")
    return 0


cdef Sub *put_subscription(ClientConnection client, frozen) except NULL:
    cdef bytes sid = frozen.sid
    cdef bytes subject = frozen.subject
    cdef bytes queue = frozen.queue
    cdef bytes padded_sid = sid + bytes(SLACK)
    cdef bytes padded = subject + bytes(SLACK)
    cdef bytes padded_queue = queue + bytes(SLACK)
    cdef const uint8_t *at = padded_sid
    cdef uint32_t hash = <uint32_t>hash_bytes(at, len(sid), client.sublist.seed)
    cdef uint64_t delivered = frozen.delivered
    cdef Sub *sub = client.sublist.insert(&client.out, <const uint8_t *>padded, len(subject),
                                          <const uint8_t *>padded_queue, len(queue), at, len(sid), hash,
                                          &client.touched)
    if sub == NULL:
        raise MemoryError
    if not table_insert(&client.subs, &sub.key):
        client.sublist.remove(sub, &client.touched)
        raise MemoryError
    if client.sublist.stream_imports is not None:
        if client.shadows is None:
            client.shadows = Shadows()
        client.shadows.cast(client.sublist, sub, subject, queue, &client.touched)
    client.touched |= client.fence.unheard()
    sub.delivered = delivered
    sub.max_msgs = frozen.max_msgs
    if sub.group != NULL:   # the statistics have them already
        client.bounded_members += sub.max_msgs != 0
        memcpy(<uint8_t *>sub + sizeof(Sub) + sub.key.size, &delivered, sizeof(delivered))
    take_marked(sub)        # … and so has the row of this client
    return sub


cdef int put_state(ClientConnection client, frozen) except -1:
    cdef bytes unread = frozen.unread
    cdef size_t half = frozen.half_read_bytes
    cdef size_t size = len(unread)
    cdef uint8_t *kept
    if half:
        client.blob = blob_new(client.out.box, half)
        if client.blob == NULL:
            raise MemoryError
        memcpy(client.blob.data, <const uint8_t *>unread, size)
        client.blob_filled = size
    elif size:
        kept = <uint8_t *>malloc(size + SLACK)
        if kept == NULL:
            raise MemoryError
        memcpy(kept, <const uint8_t *>unread, size)
        free(client.partial)
        client.partial = kept
        client.partial_size = size
    client.configure(verbose=frozen.is_verbose, pedantic=frozen.is_pedantic, echo=frozen.echoes,
                     headers=frozen.takes_headers, no_responders=frozen.wants_no_responders,
                     protocol=frozen.protocol, names_subject=frozen.names_subject)
    client.must_authenticate = False
    if client.reply_permissions is not None:   # those to messages that came since then are the newest
        client.reply_permissions.put_before({one.subject: (one.asked_us, one.replies) for one in frozen.replies})
    client.in_msgs = frozen.in_msgs
    client.in_bytes = frozen.in_bytes
    client.out.msgs += <uint64_t>frozen.out_msgs
    client.out.payload_bytes += <uint64_t>frozen.out_bytes
    if client.talk != NULL:
        talk_resume(client.talk, client.in_msgs, client.in_bytes, frozen.out_msgs, frozen.out_bytes)
    client.publish_waits = frozen.publish_waits
    client.limited_us = frozen.limited_us
    client.limited_until_us = frozen.limited_until_us
    client.active_us = frozen.active_us
    client.has_spoken = True
    client.out.taken_us = frozen.taken_us
    client.pinged_us = frozen.pinged_us
    client.rtt_us = frozen.rtt_us
    client.pings_out = frozen.pings_out
    client.was_ponged = frozen.was_ponged
    client.info_due = frozen.info_due
    return 0


cdef int tell_unanswered(ClientConnection client, frozen) except -1:
    cdef bytes subject, reply
    for one in frozen.unanswered:
        subject = one.subject + bytes(SLACK)
        reply = one.reply + bytes(SLACK)
        client.on_nobody(Token(subject, len(one.subject)), Token(reply, len(one.reply)))
    return 0


def thaw(ClientConnection client not None, frozen not None):
    """Make a fresh connection what the record says.

    `client` has the cid of the record, its account's sublist and its permissions (enter()) and limits; it has had no
    bytes in or out. Its owner attaches the socket and calls go_on(), which carries out input that was read before.
    Siblings are told of its subscriptions. RecordRefused, with the reason: nothing has changed. MemoryError: the
    caller ends the connection with leave().
    """
    cdef bytes unsent = frozen.unsent
    records.check(frozen)
    if client.subs.count or client.in_msgs or out_pending(&client.out) or client.is_closing:
        raise records.RecordRefused(f"client {client.cid} is in use")
    fits(client, frozen)
    for one in frozen.subscriptions:
        put_subscription(client, one)
    put_state(client, frozen)
    if unsent:
        out_append(&client.out, <const uint8_t *>unsent, len(unsent))
    tell_unanswered(client, frozen)
    if frozen.unread:
        out_call(&client.out)
    return None
