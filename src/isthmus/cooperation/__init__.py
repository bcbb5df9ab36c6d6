"""Cooperation algorithms and the API they are written against."""
