"""What a node has on disk: a checkpoint, a journal of what must survive a kill, and a lock."""
