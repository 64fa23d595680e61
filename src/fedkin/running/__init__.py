"""Experiments: files, runs, comparisons and tuning; `fedkin.run` is in `fedkin.running.api`."""
