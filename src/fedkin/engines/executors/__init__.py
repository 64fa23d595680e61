"""Executors of clients' local work: in this process, in processes of one thread, or on a Ray cluster."""
