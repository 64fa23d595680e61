"""Federations on a Flower deployment: the server's calls are Flower messages to a fedkin process on each node."""
