# cython: language_level=3, boundscheck=False, wraparound=False
"""Makes the entry of one subject from the nodes that the subject meets.

It looks nothing up and keeps nothing: the sublist finds the nodes, and puts the entry into its match cache. Cost: two
passes over the subscriptions at those nodes, the first to know how much room they take.
"""

from libc.stdlib cimport malloc, qsort, realloc
from libc.string cimport memcpy, memset

from gnatswarm.broker.interest cimport SECOND_CHOICE, SUB_SHADOW, QueueGroup, Shadow, subject_at, weight_of
from gnatswarm.broker.permissions cimport Permissions
from gnatswarm.broker.table cimport MOST_KEY_BYTES
from gnatswarm.broker.transform cimport Transform
from gnatswarm.broker.word cimport SLACK, likely, unlikely


cdef enum:
    # Prefixes of so many bytes together, with a subject of so many, are one, into which each sid is put when a message
    # is sent: 100,000 members of a queue group had 400 MB of them for each subject of 4 KB, for one delivery.
    MOST_PREFIX_BYTES = 262144
    LONG_SUBJECT_BYTES = 128
    MOST_KINDS = 16   # of subjects that subscribers of other accounts see, for which this is so

# Drafts made so far, by all sublists: a client is among the subscribers of other accounts too (OutBuf.match).
cdef uint64_t last_match = 0
# For a shadow's subject; it is never freed. (One thread runs the engine.)
cdef uint8_t *scratch = NULL
cdef size_t scratch_room = 0


cdef inline const Sub *sid_of(const Sub *sub) noexcept:
    """Whose sid a message bears: its own, or the one that its shadow belongs to."""
    if sub.key.kind == SUB_SHADOW:
        return (<const Shadow *>sub).parent
    return sub


# The last answer of ask_for_grant(). VALID FOR ONE MATCH: nothing that it points at ends meanwhile.
ctypedef struct Grant:
    uint64_t match
    const Node *node
    const QueueGroup *group
    void *filter
    bint is_granted

cdef Grant last_grant

# Subscriptions of one draft that see the same subject.
ctypedef struct Kind:
    void *renaming        # of their Shadows; NULL: they see it as it is
    size_t shown_size     # of that subject
    size_t prefix_bytes   # of all, where each has its own
    size_t longest_sid
    bint is_shared        # they have one prefix, …
    uint32_t prefix_at    # … there; 0: it is not written yet

cdef Kind kinds[MOST_KINDS]   # the first: those who see it as it is
cdef int n_kinds = 1


cdef void ask_for_grant(const Sub *sub) noexcept:
    cdef uint8_t[MOST_KEY_BYTES + SLACK] subject
    cdef size_t size = subject_at(sub.node, subject, MOST_KEY_BYTES), queue_size = 0
    cdef const QueueGroup *group = sub.group
    cdef const uint8_t *queue = NULL
    if group != NULL:
        queue = <const uint8_t *>group.name + sizeof(QueueName)
        queue_size = group.name.key.size
    last_grant.match = last_match
    last_grant.node = sub.node
    last_grant.group = group
    last_grant.filter = sub.out.filter
    last_grant.is_granted = (<Permissions>sub.out.filter).may_subscribe(subject, size, queue, queue_size)


cdef inline bint is_granted(const Sub *sub) noexcept:
    """Do its client's new permissions allow the subscription?

    A client may have 100,000 to one subject, which have one answer. To ask takes 0.15 us, half of it for the room on
    the stack, and a match asks twice for each.
    """
    if last_grant.match != last_match or last_grant.node != sub.node or last_grant.group != sub.group \
            or last_grant.filter != sub.out.filter:
        ask_for_grant(sub)
    return last_grant.is_granted


cdef inline bint is_admitted(const Sub *sub, const uint8_t *subject, size_t size) noexcept:
    """Does its client's permission let it have messages on `subject`? (Its pattern was granted.)"""
    cdef const QueueGroup *group = sub.group
    if sub.out.filter == NULL:
        return True
    if unlikely(sub.out.is_narrowing) and not is_granted(sid_of(sub)):
        return False
    if group == NULL:
        return not (<Permissions>sub.out.filter).keeps_out(subject, size, NULL, 0)
    return not (<Permissions>sub.out.filter).keeps_out(
        subject, size, <const uint8_t *>group.name + sizeof(QueueName), group.name.key.size)


cdef Py_ssize_t renamed_size(const Sub *shadow, const uint8_t *subject, size_t size) noexcept:
    """shown_size() of a Shadow whose client sees another subject."""
    global scratch, scratch_room
    cdef Transform renaming = <Transform>(<const Shadow *>shadow).renaming
    cdef size_t room = renaming.room_for(size)
    cdef uint8_t *wider
    if room > scratch_room:
        wider = <uint8_t *>realloc(scratch, room)
        if wider == NULL:
            return -1
        scratch = wider
        scratch_room = room
    size = renaming.apply(subject, size, scratch)
    return <Py_ssize_t>size if is_admitted(shadow, scratch, size) else -1


cdef size_t name_sid(Entry *entry, const Target *target) noexcept nogil:
    return put_sid(entry.text + target.prefix_at, target.prefix_size ^ SHARED_PREFIX, target.sub)


cdef inline bint is_renamed(const Sub *sub) noexcept:
    """Does its client see another subject?"""
    return unlikely(sub.key.kind == SUB_SHADOW) and (<const Shadow *>sub).renaming != NULL


cdef inline Py_ssize_t shown_size(const Sub *sub, const uint8_t *subject, size_t size) noexcept:
    """How long the subject is that a subscriber sees; -1: its client's permission keeps the message out."""
    if is_renamed(sub):
        return renamed_size(sub, subject, size)
    return <Py_ssize_t>size if is_admitted(sub, subject, size) else -1


cdef inline bint shares_prefix(size_t prefix_bytes, size_t subject_size) noexcept:
    """Have all one, because they would take too much together?"""
    return unlikely(prefix_bytes > <size_t>MOST_PREFIX_BYTES) and subject_size >= <size_t>LONG_SUBJECT_BYTES


cdef inline Kind *kind_of(const Sub *sub) noexcept:
    """NULL: it has not been met, or is beyond the last one."""
    cdef int i
    if likely(not is_renamed(sub)):
        return &kinds[0]
    for i in range(1, n_kinds):
        if kinds[i].renaming == (<const Shadow *>sub).renaming:
            return &kinds[i]
    return NULL


cdef Kind *new_kind(void *renaming, size_t shown_size) noexcept:
    """NULL: there is no room for it."""
    global n_kinds
    if n_kinds == MOST_KINDS:
        return NULL
    memset(&kinds[n_kinds], 0, sizeof(Kind))
    kinds[n_kinds].renaming = renaming
    kinds[n_kinds].shown_size = shown_size
    n_kinds += 1
    return &kinds[n_kinds - 1]


cdef inline uint32_t measure_subs(Draft *draft, const Sub *sub) noexcept:
    """How many of these subscribers may have the message; adds up the room that their prefixes take."""
    cdef uint32_t n = 0
    cdef Py_ssize_t shown
    cdef size_t sid_size
    cdef Kind *kind
    while sub != NULL:
        draft.n_looked_at += 1
        shown = shown_size(sub, draft.subject, draft.size)
        if shown >= 0:
            n += 1
            sid_size = sid_of(sub).key.size
            kind = kind_of(sub)
            if unlikely(kind == NULL):
                kind = new_kind((<const Shadow *>sub).renaming, shown)
            if unlikely(kind == NULL):
                draft.text_size += 6 + shown + sid_size
            else:
                kind.prefix_bytes += 6 + shown + sid_size
                kind.longest_sid = max(kind.longest_sid, sid_size)
            draft.has_shadows = draft.has_shadows or sub.key.kind == SUB_SHADOW
        sub = sub.next
    return n


cdef inline bint is_gone(const Draft *draft, const QueueGroup *group) noexcept:
    """Has it no members here, and others at siblings alone that are gone?"""
    cdef uint32_t i
    if likely(draft.gone == 0) or group.members != NULL:
        return False
    for i in range(group.n_remote):
        if not draft.gone >> group.remote[i].shard & 1:
            return False
    return True


cdef inline void measure(Draft *draft) noexcept:
    """How much is there? Groups get their places among the choices."""
    cdef Node *node
    cdef QueueGroup *group
    cdef uint32_t i
    cdef int kind
    global last_match, n_kinds
    last_match += 1
    draft.match = last_match
    n_kinds = 0
    new_kind(NULL, draft.size)
    draft.text_size = draft.size + 5 + draft.account_size + 1 + draft.size
    for i in range(draft.n_found):
        node = draft.found[i]
        draft.n_plain += measure_subs(draft, node.subs)
        group = node.groups
        while group != NULL:
            if is_gone(draft, group):
                group = group.next
                continue
            if group.name.match != draft.match:
                group.name.match = draft.match
                group.name.choice = draft.n_choices
                draft.n_choices += 1
            draft.n_weights += group.n_remote
            draft.n_looked_at += 1
            group.n_admitted = measure_subs(draft, group.members)
            draft.n_local += group.n_admitted
            group = group.next
    for kind in range(n_kinds):
        kinds[kind].is_shared = shares_prefix(kinds[kind].prefix_bytes, kinds[kind].shown_size)
        draft.text_size += 6 + kinds[kind].shown_size + kinds[kind].longest_sid if kinds[kind].is_shared \
            else kinds[kind].prefix_bytes


cdef inline void begin_extras(const Draft *draft, Entry *entry, size_t extras_at, size_t size) noexcept:
    cdef Extras *extras
    entry.extras_at = <uint32_t>extras_at
    extras = extras_of(entry)
    memset(extras, 0, size)
    extras.mapping = -1
    extras.is_reply = draft.is_reply
    extras.imports = <uint32_t *>(extras + 1)
    if draft.has_shadows:
        extras.foreign = <uint8_t *>(extras.imports + draft.n_rules)
    entry.crosses = draft.is_reply


cdef inline Entry *lay_out(const Draft *draft) noexcept:
    """An entry with room for everything, its parts in place and empty. NULL: no memory."""
    cdef Entry *entry
    cdef size_t targets_at = sizeof(Entry)
    cdef size_t choices_at = targets_at + (<size_t>draft.n_plain + draft.n_local) * sizeof(Target)
    cdef size_t weights_at = choices_at + draft.n_choices * sizeof(Choice)
    cdef size_t extras_at = weights_at + draft.n_weights * sizeof(RemoteWeight)
    cdef size_t text_at = extras_at
    cdef size_t allocated
    if unlikely(draft.has_shadows or draft.n_rules or draft.is_reply):
        text_at += sizeof(Extras) + draft.n_rules * sizeof(uint32_t)
        if draft.has_shadows:
            text_at += draft.n_plain + draft.n_local
    allocated = text_at + draft.text_size + SLACK
    if draft.text_size > 0xFFFFFFFF or text_at > 0xFFFFFFFF:   # offsets are 32 bits wide
        return NULL
    entry = <Entry *>malloc(allocated)
    if entry == NULL:
        return NULL
    memset(entry, 0, sizeof(Entry))
    entry.hash = draft.hash
    entry.subject_size = <uint32_t>draft.size
    entry.n_plain = draft.n_plain
    entry.n_choices = draft.n_choices
    entry.allocated = allocated
    entry.is_new = True
    entry.targets = <Target *>(<uint8_t *>entry + targets_at)
    entry.choices = <Choice *>(<uint8_t *>entry + choices_at)
    entry.weights = <RemoteWeight *>(<uint8_t *>entry + weights_at)
    entry.text = <uint8_t *>entry + text_at
    memset(entry.choices, 0, draft.n_choices * sizeof(Choice))
    if unlikely(text_at != extras_at):
        begin_extras(draft, entry, extras_at, text_at - extras_at)
    return entry


cdef inline void place_choices(const Draft *draft, Entry *entry) noexcept:
    """Where does each group's part of the targets and of the weights begin?"""
    cdef const QueueGroup *group
    cdef Choice *choice
    cdef uint32_t i, first = draft.n_plain, first_remote = 0
    for i in range(draft.n_found):
        group = draft.found[i].groups
        while group != NULL:
            if not is_gone(draft, group):
                choice = &entry.choices[group.name.choice]
                choice.name = group.name
                choice.n_local += group.n_admitted
                choice.n_remote += group.n_remote
            group = group.next
    for i in range(draft.n_choices):   # counted again by fill_choice()
        choice = &entry.choices[i]
        choice.first = first
        first += choice.n_local
        choice.n_local = 0
        choice.first_remote = first_remote
        first_remote += choice.n_remote
        choice.n_remote = 0


cdef inline uint32_t fill_head(const Draft *draft, Entry *entry) noexcept:
    """Writes the subject, and what a frame to a sibling begins with; returns where the next text goes."""
    cdef uint8_t *to = entry.text + draft.size
    memcpy(entry.text, draft.subject, draft.size)
    entry.rmsg_at = <uint32_t>draft.size
    memcpy(to, b'RMSG ', 5)
    memcpy(to + 5, draft.account, draft.account_size)
    to[5 + draft.account_size] = c' '
    memcpy(to + 6 + draft.account_size, draft.subject, draft.size)
    entry.rmsg_size = <uint32_t>(6 + draft.account_size + draft.size)
    return entry.rmsg_at + entry.rmsg_size


cdef inline size_t begin_prefix(uint8_t *to, const uint8_t *subject, size_t size) noexcept:
    """Writes what stands in front of a sid; returns its size."""
    memcpy(to, b'HMSG ', 5)
    memcpy(to + 5, subject, size)
    to[5 + size] = c' '
    return 6 + size


cdef inline uint32_t fill_target(Entry *entry, uint32_t i, Sub *sub, uint32_t at) noexcept:
    """Writes target i, and its prefix at text[at:] unless it shares one; returns where the next text goes."""
    cdef uint8_t *to = entry.text + at
    cdef Target *target = &entry.targets[i]
    cdef const Shadow *shadow = <const Shadow *>sub
    cdef Kind *kind = kind_of(sub)
    cdef bint is_shared = unlikely(kind != NULL and kind.is_shared), is_other = is_renamed(sub)
    cdef size_t size = 0
    if unlikely(sub.key.kind == SUB_SHADOW):
        extras_of(entry).foreign[i] = True
        sub = shadow.parent
    target.sub = sub
    target.out = sub.out
    if not is_shared or kind.prefix_at == 0:
        if likely(not is_other):
            size = begin_prefix(to, entry.text, entry.subject_size)
        else:
            memcpy(to, b'HMSG ', 5)
            size = 6 + (<Transform>shadow.renaming).apply(entry.text, entry.subject_size, to + 5)
            to[size - 1] = c' '
    if is_shared:
        if kind.prefix_at == 0:
            kind.prefix_at = at
            at += <uint32_t>(size + kind.longest_sid)
        target.prefix_at = kind.prefix_at
        target.prefix_size = <uint32_t>(6 + kind.shown_size) | SHARED_PREFIX
        return at
    target.prefix_at = at
    target.prefix_size = <uint32_t>put_sid(to, size, sub)
    return at + target.prefix_size


cdef inline uint32_t fill_choice(const Draft *draft, Entry *entry, const QueueGroup *group, uint32_t at) noexcept:
    """One node's part of a queue group: members here, and how many siblings have."""
    cdef Choice *choice = &entry.choices[group.name.choice]
    cdef Sub *sub = group.members
    cdef uint32_t i, members
    while sub != NULL:
        if shown_size(sub, draft.subject, draft.size) >= 0:
            at = fill_target(entry, choice.first + choice.n_local, sub, at)
            choice.n_local += 1
            if likely(not sub.out.is_shut):
                choice.n_own += 1
                choice.n_members += 1
        else:
            choice.keeps_out = True
        sub = sub.next
    for i in range(group.n_remote):
        members = weight_of(group, i)
        if unlikely(members == 0 or draft.gone >> group.remote[i].shard & 1):
            continue
        entry.weights[choice.first_remote + choice.n_remote].shard = group.remote[i].shard
        entry.weights[choice.first_remote + choice.n_remote].members = members
        choice.n_remote += 1
        if likely(not members & SECOND_CHOICE):
            choice.n_first += 1
            choice.n_members += members
    return at


cdef inline void put_second_last(Entry *entry, Choice *choice) noexcept:
    """Members at leaf nodes and hubs come behind the others, and count where there are no others."""
    cdef RemoteWeight *weights = entry.weights + choice.first_remote
    cdef RemoteWeight first
    cdef uint32_t i, n = 0
    cdef bint is_alone = choice.n_members == 0
    for i in range(choice.n_remote):
        if weights[i].members & SECOND_CHOICE:
            weights[i].members &= ~SECOND_CHOICE
            if is_alone:
                choice.n_members += weights[i].members
        else:
            first = weights[i]
            weights[i] = weights[n]
            weights[n] = first
            n += 1


cdef int compare_choices(const void *one, const void *other) noexcept nogil:
    cdef const QueueName *name = (<const Choice *>other).name
    return compare_name((<const Choice *>one).name, <const uint8_t *>name + sizeof(QueueName), name.key.size)


cdef inline void fill(const Draft *draft, Entry *entry) noexcept:
    cdef const Node *node
    cdef const QueueGroup *group
    cdef Sub *sub
    cdef uint32_t i, n = 0, at = fill_head(draft, entry)
    for i in range(draft.n_found):
        node = draft.found[i]
        entry.remote |= node.remote & ~draft.gone
        sub = node.subs
        while sub != NULL:
            if shown_size(sub, draft.subject, draft.size) >= 0:
                at = fill_target(entry, n, sub, at)
                if sub.out.match == draft.match:
                    entry.is_doubled = True
                sub.out.match = draft.match
                n += 1
            sub = sub.next
        group = node.groups
        while group != NULL:
            if not is_gone(draft, group):
                at = fill_choice(draft, entry, group, at)
            group = group.next
    for i in range(entry.n_choices):
        if unlikely(entry.choices[i].n_first != entry.choices[i].n_remote):
            put_second_last(entry, &entry.choices[i])
    if unlikely(entry.n_choices > <uint32_t>FEW_CHOICES):   # (behind this, groups do not know their places)
        qsort(entry.choices, entry.n_choices, sizeof(Choice), compare_choices)


cdef Entry *draft_entry(Draft *draft) noexcept:
    cdef Entry *entry
    measure(draft)
    entry = lay_out(draft)
    if entry == NULL:
        return NULL
    place_choices(draft, entry)
    fill(draft, entry)
    return entry


cdef Entry *renamed_entry(const Entry *entry, const uint8_t *subject, size_t size) noexcept:
    cdef uint32_t i, n = entry.n_plain, at = entry.rmsg_at + entry.rmsg_size
    cdef size_t prefix_bytes = 0, longest_sid = 0, text_at, room
    cdef Entry *copy
    cdef Target *target
    cdef bint is_shared
    for i in range(entry.n_choices):
        n += entry.choices[i].n_local
    for i in range(n):
        prefix_bytes += 6 + size + entry.targets[i].sub.key.size
        longest_sid = max(longest_sid, <size_t>entry.targets[i].sub.key.size)
    is_shared = shares_prefix(prefix_bytes, size)
    text_at = sizeof(Entry) + n * sizeof(Target)
    room = at + (6 + size + longest_sid if is_shared else prefix_bytes)
    if room > 0xFFFFFFFF:
        return NULL
    copy = <Entry *>malloc(text_at + room + SLACK)
    if copy == NULL:
        return NULL
    memcpy(copy, entry, sizeof(Entry))
    memset(&copy.counts, 0, sizeof(copy.counts))
    copy.extras_at = 0
    copy.earlier = NULL
    copy.targets = <Target *>(<uint8_t *>copy + sizeof(Entry))
    copy.text = <uint8_t *>copy + text_at
    memcpy(copy.text, entry.text, at)
    if is_shared:
        begin_prefix(copy.text + at, subject, size)
    for i in range(n):
        target = &copy.targets[i]
        target[0] = entry.targets[i]
        target.prefix_at = at
        target.prefix_size = <uint32_t>(6 + size) | SHARED_PREFIX
        if not is_shared:
            begin_prefix(copy.text + at, subject, size)
            target.prefix_size = <uint32_t>put_sid(copy.text + at, 6 + size, target.sub)
            at += target.prefix_size
    return copy
