"""What joins a node's sessions, its links and its algorithm, without I/O.

The asyncio node and the exact simulator are two shells around the same objects in here.
"""
