"""What the tests of the calls of other libraries share."""

import numpy as np
import pytest


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def uniform(count, state):
    """Numbers in [0, 1) of the generator that the golden values were made with."""
    values = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        values.append((state >> 40) / 2 ** 24)
    return np.array(values)


def fnv1a64(data):
    digest = 0xcbf29ce484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001b3 % 2 ** 64
    return f"{digest:016x}"


def refused(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "incompatible function arguments" not in str(caught.value)
