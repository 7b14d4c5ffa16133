"""Devices on their own clocks: one heap of events, a virtual clock, links that take time, devices that come and go."""
