"""What stands behind the consumer: one hub a process, its sessions, their watches, and the frames that they get."""
