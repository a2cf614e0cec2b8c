"""Replaying a trace of real messages through the whole path, and measuring what was computed, how fresh it was, and whether it
was right."""
