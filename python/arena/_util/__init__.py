"""Helpers for every other package: arguments, sizes, files, the environment, lazy imports, and process exit."""
