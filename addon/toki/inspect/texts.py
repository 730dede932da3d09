"""Common beginnings and ends of texts, by binary search over comparisons that run in C."""

from __future__ import annotations


def common_prefix(a: str, b: str) -> int:
    """The number of leading characters that are equal in both."""
    if a == b:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: str, b: str, most: int | None = None) -> int:
    """The number of trailing characters that are equal in both, up to `most`."""
    low, high = 0, min(len(a), len(b)) if most is None else min(len(a), len(b), most)
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low
