"""What a user asks for: the experiment, as a TOML file or as Python objects."""
