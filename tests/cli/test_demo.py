"""The command line and the demo."""

import json

import pytest

from vnd.cli import main
from vnd.distributions import BernoulliChain


def test_the_demo_writes_a_figure_and_the_numbers_that_it_prints(tmp_path, capsys):
    main(["demo", "--out", str(tmp_path / "demo"), "--units", "8"])
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "demo" / "lengths.json").read_text())
    assert len(rows) == 4
    assert all(sum(row["length_probs"]) == pytest.approx(1, abs=1e-5) for row in rows)
    assert rows[1]["expected_length"] == pytest.approx(float(BernoulliChain.uniform(8).expected_length))
    assert all(row["chain"] in printed for row in rows)
    assert f"{rows[0]['expected_length']:.2f}" in printed
    picture = (tmp_path / "demo" / "downhill.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_bad_input_ends_in_one_line_and_a_code(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--units", "1"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "vnd: units must be at least 2; got 1\n"


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["dance"])
    assert stopped.value.code == 2
    assert "demo" in capsys.readouterr().err
