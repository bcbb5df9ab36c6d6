"""The benchmark system: load for one broker or many, and the limit of what they carry.

Source: ILDM (2019) §5.  A scenario says who publishes and subscribes where; the load tool plays
all those clients and records every message; the indexes come from :mod:`isthmus.pipeline`.
"""
