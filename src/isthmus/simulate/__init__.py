"""Simulated runs: a simulator of :mod:`isthmus.sim` on one side, the log on the other."""
