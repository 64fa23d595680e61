"""Federations over a network: links between participants, their keys and certificates, and join files."""
