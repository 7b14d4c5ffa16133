"""One device as one process: the core of `core.device` with a real clock, real sockets and a disk."""
