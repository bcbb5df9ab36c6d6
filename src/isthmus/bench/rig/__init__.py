"""Servers on one machine: quotas, namespaces and shaped networks."""
