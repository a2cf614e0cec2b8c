"""Steady load on real processes, watched for growth: `python -m tests.benchmarks.soak --minutes 10 [--json FILE] [--svg FILE]`.

Writers, readers and sockets that come and go work on ASGI servers of both kinds, on workers and a maintenance loop; every few
seconds each process, Redis and the database are measured. At the end the second half is judged by the rule in `judge`.
"""
