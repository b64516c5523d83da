"""Answers from recorded and repeated runs: replay, compare, fit, the largest batch, and the prices of the driver."""
