"""The bytes of a shard: tar and TFRecord framing, the packed index, decoding and checking of images."""
