"""What a user sets: the experiment, as a TOML file or as Python objects."""
