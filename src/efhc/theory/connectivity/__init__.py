"""Connectivity: the links used, their windows and weights, and how much these contract."""
