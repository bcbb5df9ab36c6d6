"""Load processes: the clients they play, what they send, receive and record."""
