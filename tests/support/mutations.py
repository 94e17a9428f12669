"""Bytes with a few random changes, for tests of parsers."""

import random
from collections.abc import Sequence


def changed_once(data: bytearray, at: int, pieces: Sequence[bytes], chance: random.Random) -> None:
    """Replaces, removes, repeats or inserts some bytes at this place."""
    end = min(len(data), at + chance.randrange(1, 12))
    how = chance.randrange(6)
    if how == 0:
        data[at:end] = chance.randbytes(end - at)
    elif how == 1:
        del data[at:end]
    elif how == 2:
        data[at:end] = chance.choice(pieces)
    elif how == 3:
        data[at:at] = data[at:end] * chance.randrange(1, 30)
    else:
        data[at:at] = chance.choice(pieces)
