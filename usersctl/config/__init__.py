"""Configuration: what the keys are, what a value may be, and which source wins."""
