"""CBOR as authenticators write it: the part of RFC 8949 that CTAP2 allows, read with strict bounds. What is none is a ValueError."""

from typing import Any

MAX_DEPTH = 4  # CTAP2 nests no deeper


def only_item(data: bytes) -> Any:
    item, end = item_at(data, 0)
    if end != len(data):
        raise ValueError("something comes after the CBOR")
    return item


def item_at(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """The item that begins here, and where the next one begins."""
    kind, size, at = _head(data, at)
    if depth > MAX_DEPTH:
        raise ValueError("the CBOR is nested too deeply")
    if kind == 0:
        return size, at
    if kind == 1:
        return -1 - size, at
    if kind in (2, 3):
        end = at + size
        if end > len(data):
            raise ValueError("the CBOR ends too early")
        return data[at:end] if kind == 2 else data[at:end].decode(), end
    if kind == 4:
        items = []
        for _ in range(size):
            item, at = item_at(data, at, depth + 1)
            items.append(item)
        return items, at
    if kind == 5:
        return _map(data, at, size, depth)
    if kind == 7 and size in (20, 21):
        return size == 21, at
    raise ValueError("the CBOR has an item that CTAP2 does not know")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """The kind of an item, its number or size, and where its content begins."""
    if at >= len(data):
        raise ValueError("the CBOR ends too early")
    kind, size = data[at] >> 5, data[at] & 31
    at += 1
    if size < 24:
        return kind, size, at
    length = {24: 1, 25: 2, 26: 4, 27: 8}.get(size)
    if length is None or at + length > len(data) or kind == 7:
        raise ValueError("the CBOR has an item that CTAP2 does not know")
    return kind, int.from_bytes(data[at : at + length]), at + length


def _map(data: bytes, at: int, size: int, depth: int) -> tuple[dict[int | str, Any], int]:
    pairs: dict[int | str, Any] = {}
    for _ in range(size):
        key, at = item_at(data, at, depth + 1)
        if type(key) not in (int, str) or key in pairs:
            raise ValueError("the CBOR has a key twice, or one of another type")
        pairs[key], at = item_at(data, at, depth + 1)
    return pairs, at
