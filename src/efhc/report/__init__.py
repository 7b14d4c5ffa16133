"""Pictures of runs, made from their metrics alone."""
