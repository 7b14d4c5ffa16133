"""Compiled loops of a run (`loops`), and the arithmetic of an iteration made of them (`compiled_arithmetic`).

The theory keeps its own loops in `efhc.theory.connectivity.network_loops`.
"""
