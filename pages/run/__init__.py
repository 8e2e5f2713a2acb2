"""Sections of a run's page: what each shows, one view and one template each."""
