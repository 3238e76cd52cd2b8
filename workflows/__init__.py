"""Deterministic orchestration: one workflow a file, and `parts`, what they are made of."""
