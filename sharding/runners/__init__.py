"""What the Beam graph runs on."""
