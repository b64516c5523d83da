"""What an arena holds, as plain data: snapshots, allocating lines, holders, and samples over time."""
