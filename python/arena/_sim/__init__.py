"""What ``arena.sim`` is built on: a typed wrapper around the simulated driver's library, and the warning to users."""
