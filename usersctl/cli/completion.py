"""Completion where Typer's is not enough.

For bash @, : and = end a word, and it puts a candidate on the command line as it is. For zsh and fish `--option=value` is one
word, and zsh loads a function at its first call, which has to complete as well.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from io import StringIO

_IN_ZSH = """
#compdef %(prog_name)s

%(complete_func)s() {
  [[ $words[CURRENT] == --*=* ]] && compset -P '*='
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" %(autocomplete_var)s=complete_zsh %(prog_name)s)
}

compdef %(complete_func)s %(prog_name)s
[[ $funcstack[1] == _%(prog_name)s ]] && %(complete_func)s
"""
_BREAK = "[@:=]"
# What a shell acts on within double quotes, and what it acts on without quotes, also at the beginning of a word.
_IN_QUOTES, _SPECIAL = r'(["$`\\!])', r"(^[~#]|[^\w@:=%+,./~#-])"


def bash_words() -> AbstractContextManager[None]:
    """Gives Typer whole words, and bash what is missing of the last one, quoted: a stranger may have chosen the address."""
    pieces = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
    words = _words(pieces)
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    quote = pieces[-1][:1]
    typed = _breaks_before(pieces[-1], words[-1])
    return _printing(
        lambda candidates: "".join(f"{_quoted(_after(each, typed), quote)}\n" for each in candidates.split())
    )


def teach_zsh() -> None:
    """Replaces Typer's script, wherever it has one. A test sees if a new version keeps it elsewhere."""
    from typer import _completion_classes, _completion_shared

    _completion_shared._completion_scripts["zsh"] = _IN_ZSH  # noqa: SLF001
    _completion_classes.ZshComplete.source_template = _IN_ZSH


def zsh_words() -> AbstractContextManager[None]:
    """Typer doubles an apostrophe of an address, which zsh leaves out then."""
    return _printing(lambda candidates: candidates.replace("''", r"'\''"))


def fish_words() -> AbstractContextManager[None]:
    """Typer gives the value alone, in the place of which fish expects `--option=value`."""
    found = re.search(r"\s(--[\w-]+=)\S*$", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    option = found[1] if found else ""
    return _printing(lambda candidates: "".join(f"{option}{line}\n" for line in candidates.splitlines()))


@contextmanager
def _printing(changed: Callable[[str], str]) -> Iterator[None]:
    """Changes what Typer prints, which ends the process."""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        print(changed(printed.getvalue()), end="", flush=True)


def _words(pieces: list[str]) -> list[str]:
    """`ada`, `@`, `ex` are one word. An empty piece is a new one: there is a space before the cursor."""
    words: list[str] = []
    before = ""
    for piece in pieces:
        if words and piece and (_is_break(piece) or _is_break(before)):
            words[-1] += piece
        else:
            words.append(piece)
        before = piece
    return words


def _is_break(piece: str) -> bool:
    return re.fullmatch(f"{_BREAK}+", piece) is not None


def _breaks_before(piece: str, word: str) -> int:
    """How many signs that end a word stand before what bash replaces. Typer leaves out `--option=` itself."""
    value = re.sub(r"^--[\w-]+=", "", word)
    before = value if _is_break(piece) else value[: max(len(value) - len(piece), 0)]
    return len(re.findall(_BREAK, before))


def _after(candidate: str, breaks: int) -> str:
    """Of these signs, bash replaces an @ together with the word after it."""
    signs = list(re.finditer(_BREAK, candidate))[:breaks]
    if not signs:
        return candidate
    return candidate[signs[-1].start() if signs[-1][0] == "@" else signs[-1].end() :]


def _quoted(text: str, quote: str) -> str:
    if quote == "'":
        return text.replace("'", r"'\''")
    return re.sub(_IN_QUOTES if quote == '"' else _SPECIAL, r"\\\1", text)
