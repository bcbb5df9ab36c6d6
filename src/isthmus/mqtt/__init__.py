"""MQTT 3.1.1 and 5 without I/O: frames, packets, properties, topics and filters."""
