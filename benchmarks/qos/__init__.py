"""What `bench_qos.py` is made of."""
