"""arena.dask with real clusters of distributed, in this process and in processes of their own."""
