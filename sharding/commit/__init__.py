"""The end of the stage: index, copies, manifest."""
