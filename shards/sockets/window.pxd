# Receive buffers of clients on this host. No state.

# Bounds the receive buffer, if the kernel can lift the bound again. True: it is bounded.
cdef bint narrow(int fd) noexcept
# Lifts the bound: the kernel sizes the receive buffer by itself again.
cdef void widen(int fd) noexcept
