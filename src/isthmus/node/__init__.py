"""The asyncio node: listeners, sessions, relay, forwarding table, admin."""
