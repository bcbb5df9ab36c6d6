"""The coordinator of load processes, here and on other machines."""
