"""The command line, the DAG, and what runs it. Heavy imports live inside command bodies only."""
