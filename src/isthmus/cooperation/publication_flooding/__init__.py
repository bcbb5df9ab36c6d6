"""Publication flooding (PF, ILDM §3.1): every message goes to every broker."""
