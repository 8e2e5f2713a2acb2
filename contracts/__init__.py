"""What the stages agree on: configuration, documents, errors, storage and events.

Every other package imports this one; it imports none of them, and nothing heavy (no torch, Beam or kfp).
"""

# The packages of this project, which its wheel holds.
PACKAGES = (
    "contracts",
    "records",
    "sharding",
    "trainer",
    "components",
    "pipelines",
    "rehearsal",
    "inspection",
)
