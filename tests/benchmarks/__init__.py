"""The bars of the design, measured: `python -m tests.benchmarks [B1 …] [--json] [--database sqlite|postgres|both]`.

Every figure is a ratio inside one run: what the package does against a floor (the raw commands it cannot do without) or a peer
(what one would write without it), on the same servers, the two sides by turns. See `harness` for how they are compared.
"""
