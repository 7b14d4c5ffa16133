"""A page that shows runs while they are made, and afterwards. Nothing here changes, locks or executes a run."""
