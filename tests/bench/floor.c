/* The floor of a comparison: a relay that loadtest takes for a NATS server, and that does no more than it must.
 *
 *     floor -p PORT [-w WAIT_US] [-n PROCESSES] [-r RECEIVE_BYTES]
 *
 * A turn of its loop reads each ready socket once, and ends with one send for each receiver: what every server pays to
 * the kernel. Two copies for each message come on top. Left out is what makes a server: rights, limits, queue groups (a
 * member is like any subscriber), UNSUB, slow consumers, and checks of any kind. It listens on loopback alone.
 *
 * -w: pause after every turn, in microseconds (default 0), as a patient server would. -n: 1 or 2 processes; two share
 * the port and a table of subscriptions, and what crosses goes over one Unix socket. -r: SO_RCVBUF of clients; by
 * default the kernel chooses it. Exit code 2: a bad argument, or a call that cannot fail did.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_BYTES = 1 << 18,
    MOST_FDS = 1 << 17,
    MOST_SUBS = 1 << 20, /* nothing is freed: enough for a comparison of an hour */
    BUCKETS = 1 << 16,
    MOST_TARGETS = 4096,
    MOST_EVENTS = 4096, /* a whole crowd in one turn */
    WORD_BYTES = 64,    /* of a subject or a sid */
};

/* One subscription, in memory that both processes share. It is written once, before others can find it. */
typedef struct {
    char subject[WORD_BYTES], sid[WORD_BYTES]; /* sid: with a space in front */
    uint32_t subject_size, sid_size, next;     /* next: in its bucket; 0 is the last */
    int process, fd;
    _Atomic uint32_t is_alive;
} Sub;

typedef struct {
    _Atomic uint32_t n_subs, version, is_locked;
    _Atomic uint32_t buckets[BUCKETS + 1]; /* the last is for patterns, which end in * */
    Sub subs[MOST_SUBS];
} Table;

typedef struct {
    int fd, is_link, is_dirty, is_blocked;
    char *in, *out; /* the beginning of an operation; what is to be sent */
    size_t in_size, out_size, out_room;
    char line[256]; /* the last PUB without a reply, and who gets it */
    size_t line_size, subject_size, body_size;
    uint32_t version, n_targets, *targets;
} Conn;

/* In front of what crosses. */
typedef struct {
    uint32_t fd, size;
} Hop;

static Table *table;
static Conn *conns[MOST_FDS], *dirty[MOST_FDS], *sibling;
static int set_fd, me, n_dirty, receive_bytes;
static char shared[READ_BYTES * 2];
static uint32_t found[MOST_TARGETS];

static int checked(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
        exit(2);
    }
    return result;
}

static void watch(Conn *conn, int how, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = conn};
    checked(epoll_ctl(set_fd, how, conn->fd, &event), "epoll_ctl");
}

static Conn *add(int fd, int is_link) {
    Conn *conn = calloc(1, sizeof *conn);
    conn->fd = fd;
    conn->is_link = is_link;
    conns[fd] = conn;
    watch(conn, EPOLL_CTL_ADD, EPOLLIN);
    return conn;
}

/* Room for so many bytes at the end of what is to be sent. */
static char *reserve(Conn *conn, size_t size) {
    if (conn->out_size + size > conn->out_room) {
        conn->out_room = 2 * (conn->out_size + size) + 4096;
        conn->out = realloc(conn->out, conn->out_room);
    }
    if (!conn->is_dirty) {
        conn->is_dirty = 1;
        dirty[n_dirty++] = conn;
    }
    conn->out_size += size;
    return conn->out + conn->out_size - size;
}

static void append(Conn *conn, const char *bytes, size_t size) { memcpy(reserve(conn, size), bytes, size); }

static void flush(Conn *conn) {
    if (conn->is_blocked || conn->out_size == 0)
        return;
    ssize_t took = send(conn->fd, conn->out, conn->out_size, MSG_NOSIGNAL);
    if (took < 0 && errno != EAGAIN)
        took = conn->out_size; /* its reader is gone; the read says so */
    if (took > 0) {
        memmove(conn->out, conn->out + took, conn->out_size - took);
        conn->out_size -= took;
    }
    if (conn->out_size) {
        conn->is_blocked = 1;
        watch(conn, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    } else if (conn->out_room > 1 << 16) { /* idle connections hold nothing */
        free(conn->out);
        conn->out = NULL;
        conn->out_room = 0;
    }
}

static uint32_t bucket_of(const char *subject, size_t size) {
    uint32_t hash = 2166136261u;
    if (subject[size - 1] == '*')
        return BUCKETS;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (uint8_t)subject[i]) * 16777619u;
    return hash % BUCKETS;
}

static void subscribe(Conn *conn, const char *subject, size_t subject_size, const char *sid, size_t sid_size) {
    uint32_t bucket = bucket_of(subject, subject_size), number = atomic_fetch_add(&table->n_subs, 1) + 1, none = 0;
    Sub *sub = &table->subs[number];
    if (number >= MOST_SUBS || subject_size > WORD_BYTES || sid_size + 1 > WORD_BYTES)
        checked(-1, "a subscription that does not fit");
    memcpy(sub->subject, subject, sub->subject_size = subject_size);
    sub->sid[0] = ' ';
    memcpy(sub->sid + 1, sid, sid_size);
    sub->sid_size = sid_size + 1;
    sub->process = me;
    sub->fd = conn->fd;
    sub->is_alive = 1;
    while (!atomic_compare_exchange_weak(&table->is_locked, &none, 1))
        none = 0;
    sub->next = table->buckets[bucket];
    table->buckets[bucket] = number;
    table->is_locked = 0;
    table->version++;
}

static uint32_t match(const char *subject, size_t size) {
    uint32_t n = 0, number;
    for (number = table->buckets[bucket_of(subject, size)]; number; number = table->subs[number].next) {
        Sub *sub = &table->subs[number];
        if (sub->is_alive && sub->subject_size == size && !memcmp(sub->subject, subject, size) && n < MOST_TARGETS)
            found[n++] = number;
    }
    for (number = table->buckets[BUCKETS]; number; number = table->subs[number].next) {
        Sub *sub = &table->subs[number];
        if (sub->is_alive && sub->subject_size <= size && !memcmp(sub->subject, subject, sub->subject_size - 1) &&
            n < MOST_TARGETS)
            found[n++] = number;
    }
    return n;
}

/* `tail`: all that stands behind the subject, the payload and its end included. */
static void deliver(const char *subject, size_t subject_size, const char *tail, size_t tail_size,
                    const uint32_t *targets, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const Sub *sub = &table->subs[targets[i]];
        size_t size = 4 + subject_size + sub->sid_size + tail_size;
        char *to;
        if (sub->process == me) {
            if (conns[sub->fd] == NULL)
                continue;
            to = reserve(conns[sub->fd], size);
        } else {
            Hop hop = {.fd = sub->fd, .size = size};
            to = reserve(sibling, sizeof hop + size);
            memcpy(to, &hop, sizeof hop);
            to += sizeof hop;
        }
        memcpy(to, "MSG ", 4);
        memcpy(to += 4, subject, subject_size);
        memcpy(to += subject_size, sub->sid, sub->sid_size);
        memcpy(to + sub->sid_size, tail, tail_size);
    }
}

/* One PUB; returns its size, or 0 where not all of it is here. */
static size_t publish(Conn *conn, const char *line, size_t line_size, const char *end) {
    const char *subject = line + 4, *past = memchr(subject, ' ', line_size - 4), *size = line + line_size - 2;
    if (past == NULL)
        return line_size;
    while (size[-1] != ' ')
        size--;
    size_t subject_size = past - subject, total = line_size + atoi(size) + 2;
    if ((size_t)(end - line) < total)
        return 0;
    uint32_t version = table->version, n = match(subject, subject_size);
    deliver(subject, subject_size, past, line + total - past, found, n);
    conn->line_size = 0;
    if (size == past + 1 && line_size <= sizeof conn->line) {
        memcpy(conn->line, line, conn->line_size = line_size);
        conn->subject_size = subject_size;
        conn->body_size = total - line_size;
        conn->version = version;
        conn->targets = realloc(conn->targets, (n + 1) * sizeof *found);
        memcpy(conn->targets, found, (conn->n_targets = n) * sizeof *found);
    }
    return total;
}

static size_t operate(Conn *conn, const char *at, const char *end) {
    const char *newline;
    size_t total = conn->line_size + conn->body_size;
    if (conn->line_size && (size_t)(end - at) >= total && conn->version == table->version &&
        !memcmp(at, conn->line, conn->line_size)) {
        const char *past = at + 4 + conn->subject_size;
        deliver(at + 4, conn->subject_size, past, at + total - past, conn->targets, conn->n_targets);
        return total;
    }
    if ((newline = memchr(at, '\n', end - at)) == NULL)
        return 0;
    size_t line_size = newline + 1 - at;
    if (!memcmp(at, "PUB ", 4))
        return publish(conn, at, line_size, end);
    if (!memcmp(at, "SUB ", 4)) {
        const char *sid = newline - 1, *past = memchr(at + 4, ' ', line_size - 4);
        while (sid[-1] != ' ')
            sid--;
        subscribe(conn, at + 4, past - (at + 4), sid, newline - 1 - sid);
    } else if (!memcmp(at, "PING", 4)) {
        append(conn, "PONG\r\n", 6);
    }
    return line_size;
}

static size_t take_hop(const char *at, const char *end) {
    Hop hop;
    if ((size_t)(end - at) < sizeof hop)
        return 0;
    memcpy(&hop, at, sizeof hop);
    if ((size_t)(end - at) < sizeof hop + hop.size)
        return 0;
    if (conns[hop.fd])
        append(conns[hop.fd], at + sizeof hop, hop.size);
    return sizeof hop + hop.size;
}

static void end_of(Conn *conn) {
    if (conn->is_link)
        exit(0);
    for (uint32_t number = 1; number <= table->n_subs && number < MOST_SUBS; number++)
        if (table->subs[number].process == me && table->subs[number].fd == conn->fd)
            table->subs[number].is_alive = 0;
    table->version++;
    for (int i = 0; i < n_dirty; i++)
        if (dirty[i] == conn)
            dirty[i--] = dirty[--n_dirty];
    conns[conn->fd] = NULL;
    close(conn->fd);
    free(conn->in);
    free(conn->out);
    free(conn->targets);
    free(conn);
}

static void take(Conn *conn) {
    memcpy(shared, conn->in, conn->in_size);
    ssize_t got = recv(conn->fd, shared + conn->in_size, READ_BYTES, 0);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        end_of(conn);
        return;
    }
    const char *at = shared, *end = shared + conn->in_size + got;
    for (size_t done; at < end; at += done)
        if ((done = conn->is_link ? take_hop(at, end) : operate(conn, at, end)) == 0)
            break;
    if ((size_t)(end - at) > READ_BYTES)
        checked(-1, "an operation that does not fit");
    if (conn->in_size || at < end) {
        conn->in = realloc(conn->in, end - at + 1);
        memcpy(conn->in, at, conn->in_size = end - at);
    }
}

static void welcome(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        char info[256];
        if (fd >= MOST_FDS)
            checked(-1, "a descriptor that does not fit");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (receive_bytes)
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
        int size = snprintf(info, sizeof info,
                            "INFO {\"server_id\":\"FLOOR\",\"version\":\"0\",\"proto\":1,\"headers\":true,"
                            "\"max_payload\":%d,\"shard\":%d}\r\n", READ_BYTES / 2, me);
        append(add(fd, 0), info, size);
    }
}

static void serve(int listener, int link, long wait_us) {
    static struct epoll_event events[MOST_EVENTS];
    struct epoll_event asked = {.events = EPOLLIN, .data.ptr = NULL};
    struct timespec pause = {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};
    set_fd = checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    checked(epoll_ctl(set_fd, EPOLL_CTL_ADD, listener, &asked), "epoll_ctl");
    if (link >= 0)
        sibling = add(link, 1);
    for (;;) {
        int n = epoll_wait(set_fd, events, MOST_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            Conn *conn = events[i].data.ptr;
            if (conn == NULL) {
                welcome(listener);
                continue;
            }
            if (events[i].events & EPOLLOUT) {
                conn->is_blocked = 0;
                flush(conn);
                if (!conn->is_blocked)
                    watch(conn, EPOLL_CTL_MOD, EPOLLIN);
            }
            if (events[i].events & ~EPOLLOUT)
                take(conn);
        }
        for (int i = 0; i < n_dirty; i++) {
            dirty[i]->is_dirty = 0;
            flush(dirty[i]);
        }
        n_dirty = 0;
        if (wait_us)
            nanosleep(&pause, NULL);
    }
}

static int listen_on(int port) {
    int fd = checked(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    checked(bind(fd, (struct sockaddr *)&address, sizeof address), "bind");
    checked(listen(fd, 4096), "listen");
    return fd;
}

int main(int count, char **words) {
    int port = 0, processes = 1, option, listeners[2], link[2] = {-1, -1};
    long wait_us = 0;
    while ((option = getopt(count, words, "p:w:n:r:")) > 0) {
        long value = atol(optarg ? optarg : "-1");
        if (option == 'p' && value > 0 && value < 65536)
            port = value;
        else if (option == 'w' && value >= 0 && value <= 1000000)
            wait_us = value;
        else if (option == 'n' && (value == 1 || value == 2))
            processes = value;
        else if (option == 'r' && value > 0)
            receive_bytes = value;
        else
            port = -1;
    }
    if (port <= 0) {
        fprintf(stderr, "usage: floor -p PORT [-w WAIT_US] [-n PROCESSES: 1 or 2] [-r RECEIVE_BYTES]\n");
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED)
        checked(-1, "mmap");
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = 0; i < processes; i++)
        listeners[i] = listen_on(port);
    if (processes == 2) {
        checked(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, link), "socketpair");
        if (checked(fork(), "fork") == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            me = 1;
        }
        close(listeners[!me]);
        close(link[!me]);
    }
    serve(listeners[me], link[me], wait_us);
}
