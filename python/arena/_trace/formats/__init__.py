"""Traces in other formats, and arena's text format: one module each."""
