"""Running the parts of a deployment as child processes of one command: a Redis, an ASGI server, workers."""
