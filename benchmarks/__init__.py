"""What efhc costs, as ratios of processor time: `python -m benchmarks --help`, or `make bench ARGS="..."`."""
