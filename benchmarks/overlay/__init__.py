"""What `benchmarks/bench_overlay.py` is made of.

shapes      random graphs and meshes, and which node is root, inner node or leaf of a tree
simulated   convergence and repair in virtual time, by the number of nodes
members     five real nodes that find each other, each in front of a Mosquitto
star        the same Mosquittos joined by their own bridges
load        clients at QoS 1, and an account of every message
rounds      one round of everything live
verdict     figures, targets and tables
plot        the picture of the page
"""
