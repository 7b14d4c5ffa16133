"""Compiled loops of a run (`loops`), and the arithmetic of an iteration made of them (`arithmetic`).

The theory keeps its own loops in `efhc.theory.kernels`.
"""
