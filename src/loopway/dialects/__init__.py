"""What the wire looks like. Pure: bytes and plain data in, bytes and plain data out."""
