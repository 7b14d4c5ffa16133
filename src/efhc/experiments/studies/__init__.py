"""What is made of runs: sweeps, tuning, the figures of the paper, the theory of a run, the demo."""
