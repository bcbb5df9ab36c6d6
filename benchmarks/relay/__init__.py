"""The relay benchmark: one broker, the same load directly and through a node.

load        clients of the load tool in this process, and the check of what arrived
saturation  closed loop: the highest sustained rate, CPU per delivered message
latency     open loop at a fixed rate: the time from send to delivery
idle        the node's memory with thousands of idle clients
processes   the broker and the node as processes: start, CPU, memory, stop
rounds      one round of all of it, the paths taking turns
statistics  slices to runs, medians and spreads
verdict     rounds to figures and targets
report      the machine, the JSON file and the table
"""
