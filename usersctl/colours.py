"""Colours such as #0b5fff, and which of them can be read on which, as WCAG counts it."""

BLACK, WHITE = "#000000", "#ffffff"
ENOUGH = 4.6  # a little above what WCAG AA asks of text


def readable_on(colour: str) -> str:
    """Black or white, whichever reads better on it."""
    return max(BLACK, WHITE, key=lambda each: _contrast(_parts(colour), _parts(each)))


def made_readable(colour: str, *, on: str, towards: str) -> str:
    """The nearest to it, on the way to black or white, that can be read on this paper."""
    steps = (step / 20 for step in range(21))
    mixed = (
        tuple(a + (b - a) * step for a, b in zip(_parts(colour), _parts(towards), strict=True))
        for step in steps
    )
    found = next(each for each in mixed if _contrast(each, _parts(on)) >= ENOUGH)
    return "#" + "".join(f"{round(part * 255):02x}" for part in found)


def _parts(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted(_luminance(each) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[float, ...]) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
