"""I/O in: HTTP requests to exchanges, answers to HTTP."""
