"""Local clients: their pairs of sessions, what they have not released, their wills."""
