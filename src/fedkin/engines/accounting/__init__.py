"""Accounting of a round: messages, operations, scores, time."""
