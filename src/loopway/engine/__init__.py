"""What happens in one exchange, and in what order. Pure: no I/O, no clock, no wire format."""
