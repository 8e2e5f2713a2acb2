"""A transform of a user that takes its time, so that a training can be met in its middle."""

import time

import numpy as np
import numpy.typing as npt


def wait(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the image, 3 ms later."""
    time.sleep(0.003)
    return image
