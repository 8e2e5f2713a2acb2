"""The index of version 2, in parts."""

from __future__ import annotations

import numpy as np

# Where one sample lies in its shard: the whole of it, from its first tar header to the end of its last padding, or a
# tf.train.Example without the framing of its record.
ROW = np.dtype([("offset", "<u8"), ("size", "<u4"), ("crc32c", "<u4"), ("key", "V16")])
