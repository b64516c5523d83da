"""The simulated driver's library, typed, and the warning that a program runs on it: what ``arena.sim`` is made of."""
