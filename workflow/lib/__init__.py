"""What the rules need in Python: nothing here imports torch."""
