"""Counting a log, with and without Spark."""
