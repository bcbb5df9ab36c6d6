"""QoS 1 and 2, many topics, connection storms: what `bench_qos.py` is made of.

    sites    the paths that are compared, and the doors that a storm comes to
    players  publishers with a window of messages in flight, and their subscribers
    loops    a closed loop over one path
    topics   one publisher over many topics in turn
    storm    clients that connect at once, and come back after a node was killed
    verdict  figures, tables and targets

Processes, statistics and report are those of the relay benchmark.
"""
