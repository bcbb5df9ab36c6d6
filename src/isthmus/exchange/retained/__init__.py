"""Retained messages: one last message per topic, at every broker."""
