"""The logical broker in one process, under schedules that a seed decides, against the promises of the design.

    history      what clients did and got                    promises   what must be true of a history
    tenants      accounts, imports and permissions           swarm      shards, their links, the router, time
    servers      other servers, and the gateway              schedule   which steps, in which order, from a seed
    world        clients, and every step
    shrink       the shortest schedule that still fails      hunt       schedules one after the other
    coverage     what they covered

    python -m tests.simulation --seconds 60            a failing schedule is shrunk and printed
    python -m tests.simulation --replay FILE           one schedule again

Nothing depends on the clock, and nothing on chance but the seed. Links are byte streams that are cut anywhere; shards
are the compiled engine; clients speak the protocol. Not here: sockets, processes, log-in. README.md says more.
"""
