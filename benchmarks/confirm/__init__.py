"""The benchmark of ``confirm = "fabric"`` against ``"local"``.

    line    a link that takes time: a process that passes bytes on later
    sites   two brokers joined by two nodes that confirm in one way or the other
    loops   publishers that wait, and a far subscriber: how many arrive, how long a PUBACK takes

Publishers, statistics and report are those of the closed loop and of the relay benchmark.
"""
