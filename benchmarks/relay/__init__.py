"""The relay benchmark: one broker, the same load directly and through a node.

    wire        the bytes: CONNECT, SUBSCRIBE and the fixed-size PUBLISH of the load
    clients     many raw MQTT connections opened at once
    population  publishers and subscribers, and the check of what arrived
    saturation  closed loop: the highest sustained rate, CPU per delivered message
    latency     open loop at a fixed rate: the time from send to delivery
    idle        the node's memory with thousands of idle clients
    processes   the broker and the node as processes: start, CPU, memory, stop
    rounds      one round of all of it, the paths taking turns
    statistics  slices to runs, medians and spreads
    verdict     rounds to figures and targets
    report      the machine, the JSON file and the table

The load generator shares two cores with the broker and the node, so it is raw sockets and
epoll, and it shares no code with the package it measures.
"""
