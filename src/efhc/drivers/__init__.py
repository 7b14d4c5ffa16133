"""Drivers: they decide what time and the network are; the rules are `core`'s."""
