"""The model card of an export."""
