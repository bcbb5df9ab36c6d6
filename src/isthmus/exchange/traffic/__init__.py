"""Messages on their way: routes, numbers, acknowledgment, recovery."""
