"""Building blocks that several methods share; each module is independent of the methods that use it."""
