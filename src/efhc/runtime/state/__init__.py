"""The state folder of a node: a checkpoint, a journal that survives a kill, and a lock."""
