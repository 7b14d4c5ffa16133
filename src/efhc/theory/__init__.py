"""The paper's analysis, executable: assumptions, constants, bounds. Pure functions on arrays."""
