"""What an arena holds, as plain data: snapshots, the lines that allocate, who holds what, and figures over time."""
