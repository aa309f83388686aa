# SPDX-License-Identifier: Apache-2.0
"""Bodies that are built from others, with the operations that do it."""

from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["Step", "built", "steps"]

Step = int | tuple[float, float]
"""So many new bytes, or a part of the base: where it begins, and how much of what follows."""

_ENDS = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
_NEW = b"".join(b"%x;" % (n * n) for n in range(700))


def steps() -> st.SearchStrategy[list[Step]]:
    """What :func:`built` takes; many of them copy the most of a base."""
    copy = st.tuples(_ENDS, _ENDS)
    return st.lists(st.one_of(copy, st.just((0.0, 1.0)), st.integers(1, 60)), max_size=6)


def built(base: bytes, steps: Sequence[Step]) -> tuple[bytes, list[tuple[int | None, int]]]:
    """The body that *steps* make of *base*, and the operations of a frame that build it."""
    operations: list[tuple[int | None, int]] = []
    parts: list[bytes] = []
    for step in steps:
        if isinstance(step, int):
            parts.append(_NEW[61 * step : 62 * step])
            operations.append((None, step))
            continue
        offset = int(step[0] * len(base))
        if size := int(step[1] * (len(base) - offset)):
            parts.append(base[offset : offset + size])
            operations.append((offset, size))
    return b"".join(parts), operations
