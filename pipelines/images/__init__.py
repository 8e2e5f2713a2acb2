"""Container images: who is what, pinned by digest, and their build."""
