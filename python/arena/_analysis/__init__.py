"""Analyses of recorded and repeated runs: replay, compare, fit, the largest batch, and the cost of driver calls."""
