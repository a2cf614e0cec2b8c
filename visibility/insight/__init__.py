"""What was counted and noted, for people and machines to read: metrics, histories, savings, logs, spans."""
