"""Answers PyTorch's questions about memory that comes from an arena."""
