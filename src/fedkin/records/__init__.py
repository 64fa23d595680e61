"""The records of a run: writing, reading and checking them, and comparing many runs."""
