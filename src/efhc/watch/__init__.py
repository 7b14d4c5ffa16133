"""A page that shows runs while they are made, and afterwards. Nothing here writes a file, takes a lock or runs code."""
