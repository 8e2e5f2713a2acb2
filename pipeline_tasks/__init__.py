"""The small tasks of the pipeline beside its stages: begin, report, gate, record, and what they leave."""
