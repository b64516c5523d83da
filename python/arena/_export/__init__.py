"""Files and texts for other people's tools, one format a file. None of them is imported before it is asked for."""
