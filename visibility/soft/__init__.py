"""Soft state in Redis, one role a file. All of it may vanish at any moment and is rebuilt; see `docs/architecture.md`."""
