"""Formats of other tools, one per module. Each module is imported only when it is needed."""
