"""Events, from the change to the gate: who hears of it, the outbox row beside it, and one gate pass after the commit."""
