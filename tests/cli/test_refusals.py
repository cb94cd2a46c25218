"""Refusals of commands that need no trained network: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refusals import fails
from train.small import settings

REFUSED = [
    (["demo", "--epochs", "0"], "train.epochs must be at least 1; got 0"),
    (["demo", "--epochs", "two"], "epochs must be a whole number or none; got two"),
    (["demo", "--limit", "1"], "data.limit must be at least 2; got 1"),
    (["demo", "--limit", "100"], "limit must be at least a batch, 128; got 100"),
    (["demo", "--units", "8"], "unrecognized arguments: --units 8"),
    (["data", "fetch", "cifar11"], "unknown data set 'cifar11', did you mean 'cifar1"),
    (["data", "check", ".", "--name", "cifar11"], "unknown data set 'cifar11', did you mean 'cifar1"),
    *(
        (["recipes", "--only", word], f"vnd: recipes: only: no recipe has {word!r} in its name{told}")
        for word, told in (
            ("cifr10", ", did you mean 'cifar10'?"),
            ("paper/svhm", ", did you mean 'paper'?"),
            ("zzz", "."),
        )
    ),
    (["train"], "give a recipe, a name of `vnd recipes` or a YAML file; or --resume RUN"),
    (["train", "demo", "--train.epoch", "2"], "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
    (["train", "demo", "--train.epochs"], "--train.epochs: expected one argument"),
    (["train", "demo", "--out"], "argument --out: expected one argument"),
    (["train", "demo", "again"], "unrecognized arguments: again"),
    (["train", "--resume", "nowhere"], "nowhere is not a run: it holds no recipe.yaml"),
    (["train", "--resume", "nowhere", "--train.epochs", "2"], "leave out --train.epochs"),
    (["train", "--resume", "nowhere", "--out", "x"], "leave out --out"),
    (["train", "demo", "--resume", "nowhere"], "leave out demo"),
    (["train", "demo", "--new_epochs", "3"], "--new_epochs is for --resume RUN; to begin, give --train.epochs"),
    (["train", "--resume", "nowhere", "--new_epochs", "x"], "new_epochs must be a whole number or none; got x"),
    (["train", "demos", "--help"], "unknown recipe 'demos'"),
    (["report"], "report: the following arguments are required: runs"),
    (["sweep", "sweep.yaml", "--jobs", "0"], "vnd: sweep: jobs must be at least 1; got 0"),
    (["sweep", "fasion"], "unknown sweep 'fasion'; did you mean 'fashion'?"),
    (
        ["sweep", "sweep.yaml", "--slurm", "3"],
        "slurm must be a mapping such as {partition: gpu, time: 120}, or no; got 3",
    ),
    (
        ["sweep", "sweep.yaml", "--slurm", "{partion: a}"],
        "sweep: slurm: unknown key 'partion'; did you mean 'partition'?",
    ),
    (["sweep", "sweep.yaml", "--slurm", "{a"], "slurm is not YAML"),
    (["sweep", "cluster.yaml"], "sweep cluster.yaml: slurm: unknown key 'gpu'; did you mean 'gpus'?"),
    (["sweep", "epochs.yaml"], "run 2 (tiny.yaml): recipe"),
    (["sweep", "epochs.yaml"], "train.epochs must be at least 1; got 0"),
]
SWEEPS = {
    "sweep": {},
    "cluster": {"slurm": {"gpu": 1}},
    "epochs": {"runs": ["tiny.yaml", {"recipe": "tiny.yaml", "set": {"train.epochs": 0}}]},
}


@pytest.mark.parametrize(("words", "told"), REFUSED, ids=lambda x: " ".join(x) if isinstance(x, list) else None)
def test_bad_words_end_in_one_line_and_nothing_begins(
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(json.dumps(settings(Path("blobs.npz"), train={"epochs": 1})))
    for name, keys in SWEEPS.items():
        Path(f"{name}.yaml").write_text(json.dumps({"out": "runs", "runs": ["tiny.yaml"], **keys}))
    before = sorted(tmp_path.rglob("*"))
    assert told in fails(capsys, *words)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "lock"] == before
