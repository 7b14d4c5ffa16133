"""The strategies: those of the paper in `paper.py`, others in a file each. A new one is a `Strategy` with a `kind`."""
