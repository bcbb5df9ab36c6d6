"""What a hostile client or neighbor can do to a node: `bench_hostile.py`."""
