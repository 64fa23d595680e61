"""Federations on a Flower deployment: the server's calls as Flower messages, handed to a process on each node."""
