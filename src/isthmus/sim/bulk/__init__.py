"""Skip Graphs of up to a hundred million nodes on arrays (thesis, chapters 3.4 and 4.1)."""
