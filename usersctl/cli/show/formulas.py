"""One cell of a CSV file as text that a spreadsheet shows and does not run."""

import re

from usersctl.cli.show.cells import Cell

# What a spreadsheet takes for the beginning of a formula, also in wide forms, and what separates cells in some country.
_SIGNS = r"=+\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212"
_FORMULA = re.compile(rf"(?:^|(?<=[,;\t]))(?=[\s\"]*[{_SIGNS}]|[\t\r\n])")
_SUSPICIOUS_START, _SEPARATOR = re.compile(rf"[{_SIGNS}\s\"]"), re.compile(r"[,;\t]")


def no_formula(value: Cell) -> Cell:
    """An apostrophe stands before each formula."""
    if not isinstance(value, str):
        return value
    # Most texts need no closer look, which is slow.
    if _SUSPICIOUS_START.match(value) or _SEPARATOR.search(value):
        return _FORMULA.sub("'", value)
    return value
