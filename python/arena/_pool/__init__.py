"""Arenas: the settings they are given, what they hand out, and what they do when memory runs short."""
