# cython: language_level=3, boundscheck=False, wraparound=False
"""The wait of the event loop, done in the reactor's epoll set, so that a message wakes one set and not two.

uvloop would wait in an epoll set of its own that holds the reactor's: each lone message wakes both, and costs one
system call and one dispatch through Python more. So before libuv waits, a prepare handle waits in its place, as long as
libuv would. It holds libuv's set instead, serves sockets itself, and returns as soon as that set, a timer or a callback
is ready; libuv then finds it without waiting. Between rounds the GIL is released.
Not here: what a round does (reactor).
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF, Py_DECREF, PyObject
from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from gnatswarm.shards.sockets.epoll cimport EPOLL_CTL_DEL, EPOLLIN, epoll_ctl, epoll_event, epoll_wait
from gnatswarm.shards.sockets.reactor cimport MOST_EVENTS


cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW, RTLD_NOLOAD
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)

# libuv's own, all public and stable since 1.0: found in the module that uvloop has loaded.
ctypedef void (*hook_call)(void *handle) noexcept nogil

cdef enum:
    UV_IDLE = 6         # uv_handle_type
    UV_PREPARE = 9
    # Where uv_loop_t has them; its layout is part of libuv's ABI. begin() compares the first with uv_backend_fd().
    BACKEND_FD_AT = 64
    WATCHER_QUEUE_AT = 88   # what the loop is to watch from its next poll on: next and previous, or itself where empty

cdef size_t (*uv_handle_size)(int kind) noexcept nogil
cdef int (*uv_prepare_init)(void *loop, void *handle) noexcept nogil
cdef int (*uv_prepare_start)(void *handle, hook_call call) noexcept nogil
cdef int (*uv_idle_init)(void *loop, void *handle) noexcept nogil
cdef int (*uv_idle_start)(void *handle, hook_call call) noexcept nogil
cdef int (*uv_idle_stop)(void *handle) noexcept nogil
cdef void (*uv_unref)(void *handle) noexcept nogil
cdef void (*uv_close)(void *handle, hook_call call) noexcept nogil
cdef int (*uv_backend_fd)(const void *loop) noexcept nogil
cdef int (*uv_backend_timeout)(const void *loop) noexcept nogil
cdef void (*uv_update_time)(void *loop) noexcept nogil

cdef bint is_found = False
cdef set taken = set()      # addresses of loops whose wait is somebody's


cdef bint find_libuv(const char *path):
    global is_found, uv_handle_size, uv_prepare_init, uv_prepare_start, uv_close, uv_backend_fd
    global uv_unref, uv_idle_init, uv_idle_start, uv_idle_stop, uv_backend_timeout, uv_update_time
    cdef void *library
    if is_found:
        return True
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD)
    if library == NULL:
        return False
    uv_handle_size = <size_t (*)(int) noexcept nogil>dlsym(library, b"uv_handle_size")
    uv_prepare_init = <int (*)(void *, void *) noexcept nogil>dlsym(library, b"uv_prepare_init")
    uv_prepare_start = <int (*)(void *, hook_call) noexcept nogil>dlsym(library, b"uv_prepare_start")
    uv_idle_init = <int (*)(void *, void *) noexcept nogil>dlsym(library, b"uv_idle_init")
    uv_idle_start = <int (*)(void *, hook_call) noexcept nogil>dlsym(library, b"uv_idle_start")
    uv_idle_stop = <int (*)(void *) noexcept nogil>dlsym(library, b"uv_idle_stop")
    uv_unref = <void (*)(void *) noexcept nogil>dlsym(library, b"uv_unref")
    uv_close = <void (*)(void *, hook_call) noexcept nogil>dlsym(library, b"uv_close")
    uv_backend_fd = <int (*)(const void *) noexcept nogil>dlsym(library, b"uv_backend_fd")
    uv_backend_timeout = <int (*)(const void *) noexcept nogil>dlsym(library, b"uv_backend_timeout")
    uv_update_time = <void (*)(void *) noexcept nogil>dlsym(library, b"uv_update_time")
    is_found = (uv_handle_size != NULL and uv_prepare_init != NULL and uv_prepare_start != NULL
                and uv_idle_init != NULL and uv_idle_start != NULL
                and uv_idle_stop != NULL and uv_unref != NULL and uv_close != NULL and uv_backend_fd != NULL
                and uv_backend_timeout != NULL and uv_update_time != NULL)
    return is_found


# In front of libuv's handle, because uvloop takes its data for an object of its own.
cdef struct Hook:
    PyObject *owner     # a LoopWait
    void *uv_loop
    void **watchers     # the loop's queue of them
    void *idle          # a handle that keeps libuv from waiting: it is started whenever we do not wait
    bint *is_due        # the reactor's: do not wait
    int fd              # the reactor's set


cdef void wait_in_place(void *handle) noexcept nogil:
    """What libuv calls before it waits."""
    cdef epoll_event events[MOST_EVENTS]
    cdef Hook *hook = (<Hook *>handle) - 1
    cdef int timeout_ms, n
    uv_idle_stop(hook.idle)
    while hook.watchers[0] == <void *>hook.watchers:    # (else the loop's set lacks some until its next poll)
        uv_update_time(hook.uv_loop)
        timeout_ms = uv_backend_timeout(hook.uv_loop)
        n = epoll_wait(hook.fd, events, MOST_EVENTS, 0 if hook.is_due[0] else timeout_ms)
        if n < 0 and errno == EINTR:    # (a signal is among the loop's own events as well)
            continue
        if n < 0 or (n == 0 and not hook.is_due[0]):
            break
        if serve_round(hook.owner, events, n) or timeout_ms == 0:
            break
    if hook.fd >= 0:    # (else it was ended in that round, and closes)
        uv_idle_start(hook.idle, do_nothing)


cdef void do_nothing(void *handle) noexcept nogil:
    pass


cdef bint serve_round(PyObject *owner, epoll_event *events, int n) noexcept with gil:
    """Whether the loop is wanted."""
    cdef LoopWait wait = <LoopWait>owner
    try:
        return wait.serve(events, n)
    except BaseException as error:
        wait.on_error(error)
        return True


cdef void free_hook(void *handle) noexcept nogil:
    free((<Hook *>handle) - 1)


cdef void free_idle(void *handle) noexcept nogil:
    free(handle)


def _raise(error):
    raise error


cdef class LoopEvents(Source):
    """The loop's own epoll set, among the reactor's sources."""

    cdef int on_event(self, uint32_t events) except -1:
        self.is_ready = True
        return 0


cdef class LoopWait:
    """The wait of one loop; it goes on until end()."""

    @staticmethod
    def begin(loop, Reactor reactor not None):
        """Have this loop serve the reactor while it waits; end() must come before the loop is closed.

        None: it waits for another reactor already, it is not uvloop's, or its libuv cannot be used. Then have it watch
        the reactor's set.
        """
        cdef LoopWait wait = LoopWait()
        cdef Hook *hook
        cdef void *idle
        try:
            from uvloop import loop as module
            get_pointer = module.libuv_get_loop_t_ptr
        except (ImportError, AttributeError):
            return None
        if not isinstance(loop, module.Loop) or not find_libuv(module.__file__.encode()):
            return None
        wait.uv_loop = PyCapsule_GetPointer(get_pointer(loop), NULL)
        if <size_t>wait.uv_loop in taken \
                or (<int *>(<char *>wait.uv_loop + BACKEND_FD_AT))[0] != uv_backend_fd(wait.uv_loop):
            return None
        hook = <Hook *>calloc(1, sizeof(Hook) + uv_handle_size(UV_PREPARE))
        idle = calloc(1, uv_handle_size(UV_IDLE))
        if hook == NULL or idle == NULL:
            free(hook)
            free(idle)
            raise MemoryError
        wait.loop = loop
        wait.reactor = reactor
        wait.events = LoopEvents()
        reactor.add(wait.events, uv_backend_fd(wait.uv_loop), EPOLLIN)
        hook.owner = <PyObject *>wait
        hook.uv_loop = wait.uv_loop
        hook.watchers = <void **>(<char *>wait.uv_loop + WATCHER_QUEUE_AT)
        hook.idle = idle
        hook.is_due = &reactor.round.is_due
        hook.fd = reactor.fd
        uv_idle_init(wait.uv_loop, idle)
        uv_prepare_init(wait.uv_loop, hook + 1)
        uv_prepare_start(hook + 1, wait_in_place)
        uv_unref(idle)      # neither keeps a loop alive that closes
        uv_unref(hook + 1)
        taken.add(<size_t>wait.uv_loop)
        wait.hook = hook
        reactor.has_wait = True
        Py_INCREF(wait)
        return wait

    def end(self):
        """Give the wait back; before the reactor is closed. A second call does nothing."""
        cdef epoll_event event
        cdef Hook *hook = <Hook *>self.hook
        if hook == NULL:
            return
        self.hook = NULL
        self.reactor.has_wait = False
        taken.discard(<size_t>self.uv_loop)
        epoll_ctl(self.reactor.fd, EPOLL_CTL_DEL, self.events.fd, &event)
        self.events.fd = -1     # libuv's: it is not closed
        self.reactor.forget(self.events)
        hook.fd = -1
        uv_close(hook.idle, free_idle)      # (closing stops them)
        uv_close(hook + 1, free_hook)
        self.events.is_ready = True     # where it is called within a round, that is the last
        Py_DECREF(self)

    cdef int serve(self, void *ready, int n) except -1:
        self.events.is_ready = False
        self.reactor.serve(<epoll_event *>ready, n)
        return self.events.is_ready or self.reactor.round.is_cut

    cdef void on_error(self, object error) noexcept:
        if isinstance(error, Exception):
            self.loop.call_exception_handler({"message": "Exception in a round of the reactor", "exception": error})
        else:       # it ends the loop
            self.loop.call_soon(_raise, error)
