"""Commands that refuse: one line, and the code that says so."""

import pytest

from vnd.cli import main


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("vnd: ")
    assert line.count("\n") == 1
    return line.strip()
