"""The records of a run: what is written, how it is read back and checked, and what is said of many runs."""
