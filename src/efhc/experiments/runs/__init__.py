"""Making and keeping runs: one strategy with one seed each."""
