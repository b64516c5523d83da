"""The words arena uses everywhere, below everything else: reasons, moving, advice, and numbers as people read them."""
