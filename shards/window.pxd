# How many bytes a client on this host may have on their way to us. No state.

# Bounds it, where the bound can be taken back. True: it is bounded.
cdef bint narrow(int fd) noexcept
# Takes the bound back: from here on the kernel sizes the receive buffer as it sees fit.
cdef void widen(int fd) noexcept
