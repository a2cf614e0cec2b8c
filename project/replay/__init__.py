"""Replaying a trace of real messages through the whole path: what was computed, how fresh it was, whether it was right."""
