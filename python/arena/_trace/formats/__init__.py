"""Other people's traces, and the text of ours: one format a file."""
