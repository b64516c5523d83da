"""Texts shared by the whole package, its lowest layer: reasons, moving, verdicts, advice, and number formatting."""
