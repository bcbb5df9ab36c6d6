"""The fabric benchmark: two brokers joined by nodes, against Mosquitto's own bridge.

    sites       two joined brokers as processes: bridge, SF, PF
    population  the load: publishers on the near side, subscribers on either
    crossing    all messages cross: highest sustained rate, CPU of every process
    local       none needs to cross: what the far side pays all the same
    rounds      one round of both, the paths taking turns
    verdict     rounds to figures and targets
    neighbor    a neighbor that inter-subscribes to a million filters, over TCP
    timed       SF that notes how long each of its routes took, as a plug-in
    million     a real node with a million inter-subscriptions: match, memory, time to take them in

Load, statistics and report are the relay benchmark's (`benchmarks.relay`).
"""
