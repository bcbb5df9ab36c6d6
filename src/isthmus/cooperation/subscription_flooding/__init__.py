"""Subscription flooding (SF, ILDM §3.2): a message goes where somebody subscribes."""
