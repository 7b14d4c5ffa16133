"""From an experiment to nodes: the part of one device, node files, and launching all devices on one machine."""
