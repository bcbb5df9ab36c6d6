"""What ``isthmus up`` without a file shows."""
