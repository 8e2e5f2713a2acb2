"""From raw images to shards: a Beam job that shuffles references, never content."""
