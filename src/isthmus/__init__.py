"""Isthmus joins MQTT brokers of any make into one fabric."""

__version__ = "0.1.0"
