"""Colours such as #0b5fff, and whether text of one is readable on another, by the contrast of WCAG."""

BLACK, WHITE = "#000000", "#ffffff"
ENOUGH = 4.6  # a little above what WCAG AA asks of text


def readable_on(colour: str) -> str:
    """Black or white, whichever has more contrast with this background."""
    return max(BLACK, WHITE, key=lambda text: _contrast(_parts(colour), _parts(text)))


def made_readable(colour: str, *, on: str, towards: str) -> str:
    """The nearest colour on the way to `towards` that is readable on the background `on`."""
    pairs = list(zip(_parts(colour), _parts(towards), strict=True))
    mixed = (tuple(a + (b - a) * (step / 20) for a, b in pairs) for step in range(21))
    readable = next(colour for colour in mixed if _contrast(colour, _parts(on)) >= ENOUGH)
    return "#" + "".join(f"{round(part * 255):02x}" for part in readable)


def _parts(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(rgb: tuple[float, ...]) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
