"""The command line, the graphs, and what runs them. Heavy imports live inside command bodies only."""
