"""Reading a run: where it is, what it left, and how far it has come; nothing is written or executed."""
