"""What refuses: a call or a command, in one line that names what was wrong. Each package keeps a table of its own."""

from collections.abc import Callable

import pytest

from vnd.cli import main

Words = str | tuple[str, ...]
Refusals = dict[str, tuple[Callable[[], object], Words]]
"""Of each case a call and the words that its line holds."""


def table(cases: Refusals) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("call", "words"), [pytest.param(*case, id=name) for name, case in cases.items()])


def refused(call: Callable[[], object], words: Words, kind: type[Exception] = ValueError) -> str:
    with pytest.raises(kind) as caught:
        call()
    line = str(caught.value)
    for part in (words,) if isinstance(words, str) else words:
        assert part in line
    assert "\n" not in line
    return line


def fails(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == code
    line = capsys.readouterr().err
    assert line.startswith("vnd: ")
    assert line.count("\n") == 1
    return line.strip()
