"""The Hub: what is pushed is what was measured, with all its figures; what comes from there is data alone."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from fake_segments import fake_segment
from torch import nn

import vnd
from refusals import fails, refused, table
from train.small import recipe, write_blobs
from vnd import hub, serialization
from vnd.cli import main
from vnd.cli.push import columns_of
from vnd.data.batches import in_order
from vnd.evaluation import open_run
from vnd.nn.state import state_of
from vnd.report.results import Column, Run
from vnd.train.loop import fit

NAME = "you/small.net"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated run, read by the means of its weights."""
    folder = tmp_path_factory.mktemp("hub")
    fit(recipe(write_blobs(folder / "blobs.npz"), evaluate={"samples": 0}), folder / "run", quiet=True)
    main(["evaluate", str(folder / "run")])
    return folder / "run"


@pytest.fixture(scope="module")
def pushed(run: Path) -> Path:
    main(["push", str(run), NAME, "--dry_run", "--license", "mit"])
    return run / "hub"


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))


def own() -> tuple[nn.Module, nn.Module]:
    """A network of a class that is not the library's, with statistics of two widths."""
    torch.manual_seed(0)
    x = torch.rand(16, 1, 8, 8)
    net = vnd.to_nested(network(), x[:2], num_groups=4)
    vnd.recalibrate(net.eval(), [x], widths=(0.5, 1.0), samples="both")
    return network(), net


def same(a: nn.Module, b: nn.Module, widths: Any = (0.5, 1.0)) -> bool:
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    pairs = [(w, n) for w in widths for n in (0, 2)]
    return all(torch.equal(*(vnd.predict(n, x, w, samples=k, seed=0).probs for n in (a, b))) for w, k in pairs)


def test_what_a_run_pushes_is_at_every_size_what_was_measured(run: Path, pushed: Path) -> None:
    rows, opened = json.loads((run / "results.json").read_text())["rows"], open_run(run)
    net, test = vnd.load(pushed), opened.test()
    assert {shape for shape, _ in state_of(net).statistics} >= {vnd.Shape(row["shape"]) for row in rows}
    x, y = torch.cat(list(in_order(test, opened.normalise, "cpu"))), torch.as_tensor(test.labels)
    for row in rows:
        probs = vnd.predict(net, x, vnd.Shape(row["shape"]), samples=0).probs
        assert float(vnd.metrics.accuracy(probs, y)) == pytest.approx(row["accuracy"], abs=1e-9)
        assert float(nn.functional.nll_loss(probs.log(), y)) == pytest.approx(row["nll"], rel=1e-4)


def check_card(run: Path, pushed: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    card = huggingface_hub.ModelCard.load(pushed / "README.md")
    found = {(e.metric_args["size"], e.metric_type): e.metric_value for e in card.data.eval_results}
    for row in results["rows"]:
        for key in ("accuracy", "nll", "ece", "brier"):
            assert found[row["label"], key] == pytest.approx(row[key])
        assert f"| {row['label']} |" in card.text
    assert (card.data.library_name, card.data.license, card.data.model_name) == ("vnd", "mit", "small.net")
    assert card.data.eval_results[0].task_type == "image-classification"
    assert "More Information Needed" not in card.content
    assert (pushed / hub.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_card_has_every_figure_of_every_size(run: Path, pushed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_card(run, pushed)
    monkeypatch.setattr(hub, "_has", lambda row, key: key in row and key != "ece")  # planted: a figure is left out
    main(["push", str(run), NAME, "--dry_run", "--license", "mit", "--out", str(run / "other")])
    with pytest.raises(KeyError):
        check_card(run, run / "other")


class Hub:
    """The Hub, in a folder: what `HfApi` does for `push`, and `snapshot_download` for `load`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.calls = root / "remote", list[tuple[str, dict[str, Any]]]()
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: self)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def create_repo(self, name: str, **options: Any) -> None:
        self.calls.append((name, options))
        (self.root / name).mkdir(parents=True, exist_ok=options["exist_ok"])

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: Any, delete_patterns: Any, **_: Any):
        place = self.root / repo_id
        for pattern in delete_patterns:
            for file in place.glob(pattern):
                file.unlink()
        for file in huggingface_hub.utils.filter_repo_objects(
            [path.name for path in folder_path.iterdir()], allow_patterns=allow_patterns
        ):
            shutil.copy(folder_path / file, place / file)

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: Any, **_: Any) -> str:
        self.calls.append((name, {"revision": revision}))
        place = self.root.parent / "cache"
        place.mkdir()
        for file in huggingface_hub.utils.filter_repo_objects(
            [path.name for path in (self.root / name).iterdir()], allow_patterns=allow_patterns
        ):
            shutil.copy(self.root / name / file, place / file)
        return str(place)


def test_a_network_goes_to_the_hub_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, (plain, net) = Hub(tmp_path, monkeypatch), own()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "secret.txt").write_text("mine")
    options: dict[str, Any] = {"folder": tmp_path / "work", "private": True}
    rows = [{"label": "50 %", "fraction": 0.5, "parameters": 100, "task": "classification", "accuracy": 0.8}]
    vnd.push(vnd.extract(net, 0.5), NAME, rows, **options)
    assert vnd.push(net, NAME, **options) == f"hf://{NAME}"
    files = {path.name for path in (remote.root / NAME).iterdir()}
    assert files == {*hub.files_of(tmp_path / "work")}  # of the first push nothing is left, and nothing of the user's
    assert len(files) == 4
    assert remote.calls[0] == (NAME, {"private": True, "exist_ok": True})
    (remote.root / NAME / "run.py").write_text("raise SystemExit")
    (remote.root / NAME / "weights.bin").write_bytes(b"\x80\x04")
    net_again = vnd.load(f"hf://{NAME}@refs/pr/1", model=plain)
    assert same(net, net_again)
    assert remote.calls[-1] == (NAME, {"revision": "refs/pr/1"})
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".json", ".safetensors"}
    shutil.rmtree(tmp_path / "cache")
    refused(lambda: vnd.load(f"hf://{NAME}"), "give its plain form as model=")


def test_files_that_could_run_are_seen_if_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "FETCHED", ("*",))
    with pytest.raises(AssertionError):
        test_a_network_goes_to_the_hub_and_comes_back(tmp_path, monkeypatch)


def test_a_network_comes_from_the_cache_of_the_hub_without_a_connection(tmp_path, monkeypatch) -> None:
    """By huggingface_hub itself."""
    plain, net = own()
    place = tmp_path / "models--you--small.net"
    commit = "0" * 40
    vnd.save(net, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for address in (f"hf://{NAME}", f"hf://{NAME}@main"):
        assert same(net, vnd.load(address, model=plain))
    refused(lambda: vnd.load("hf://you/other"), ("load: hf://you/other cannot be fetched: ",), OSError)


def test_a_mixin_of_ones_own_gives_the_same_answers_at_every_width(tmp_path: Path) -> None:
    plain, net = own()

    class Mine(nn.Module, huggingface_hub.ModelHubMixin):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def _save_pretrained(self, save_directory: Path) -> None:
            vnd.save(self.net, save_directory)

        @classmethod
        def _from_pretrained(cls, *, model_id: str, **_: Any):
            return cls(vnd.load(model_id, model=plain))

    Mine(net).save_pretrained(tmp_path)
    assert same(net, Mine.from_pretrained(tmp_path).net)


def test_a_network_without_rows_says_what_its_sizes_cost_and_a_shipped_one_what_was_measured(tmp_path: Path) -> None:
    _, net = own()
    card = huggingface_hub.ModelCard.load(Path(vnd.push(net, NAME, dry_run=True, folder=tmp_path / "a")) / "README.md")
    wanted = {vnd.profile(net, width).parameters for width in (0.5, 1.0)}
    assert {e.metric_value for e in card.data.eval_results if e.metric_type == "parameters"} == wanted
    shipped = vnd.load_pretrained("cifar10-bn3-small")
    vnd.push(shipped, NAME, dry_run=True, folder=tmp_path / "b")
    card = huggingface_hub.ModelCard.load(tmp_path / "b" / "README.md")
    found = {(e.dataset_name, e.metric_value) for e in card.data.eval_results if e.metric_type == "accuracy"}
    assert found == {("cifar10", row["test"]["accuracy"]) for row in shipped.card["results"]}


def test_codes_and_masks_have_figures_by_length_and_by_number_of_samples(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"label": f"{n} of 2", "length": n, "error": 0.5 / n} for n in (1, 2)]
    columns = {"error": Column("error", "Error", better="less")}
    figures = hub.Figures(rows, columns, data="faces")
    vnd.push(network(), NAME, figures, folder=tmp_path, dry_run=True)
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert [(e.metric_type, e.metric_value) for e in card.data.eval_results] == [("error", 0.5), ("error", 0.25)]
    assert (tmp_path / hub.PICTURE).exists()
    masks = Run(tmp_path / "results.json", fake_segment("bn3_unet"))
    assert [key for key in columns_of(masks) if key.startswith("ged")] == ["ged_16", "ged_8", "ged_4", "ged_1"]
    figures = hub.Figures(masks.rows, columns_of(masks), data="lidc")
    assert hub.picture(figures).axes[0].get_ylabel() == "GED 16"
    assert len(hub.picture(figures).axes[0].lines[0].get_xdata()) == 5


class Broken:
    def __init__(self, **_: Any) -> None: ...

    def create_repo(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("401\nno token")


REFUSED = {
    **{
        f"name {name!r}": (lambda name=name: vnd.push(network(), name, dry_run=True), "push: name must be USER/NAME")
        for name in ("small", "a/b/c", "../x y", "hf://you/net", 3)
    },
    **{
        f"address {name!r}": (lambda name=name: vnd.load(name), "load: an address must be hf://USER/NAME")
        for name in ("hf://small", "hf:you/net", "hf://you/net@", "hf://a/b/c")
    },
    **{
        f"rows {rows!r}": (lambda rows=rows: vnd.push(network(), NAME, rows, dry_run=True), "push: rows must be a list")
        for rows in ([{"parameters": 3}], [], 3, "rows")
    },
    "no network": (lambda: vnd.push(3, NAME, dry_run=True), "push: net must be a network; got a int"),
    "no path": (lambda: vnd.push(network(), NAME, folder=3), "push: folder must be a path; got a int"),
}


@table(REFUSED)
def test_what_cannot_be_pushed_or_fetched_is_refused(call, words, tmp_path, monkeypatch) -> None:
    refused(call, words)


def test_what_goes_wrong_is_said_in_one_line(run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Broken)
    refused(lambda: vnd.push(network(), NAME, folder=tmp_path / "a"), ("cannot be pushed", "401 no token"), OSError)
    (tmp_path / "README.md").write_text("# Mine")
    refused(lambda: vnd.push(network(), NAME, folder=tmp_path, dry_run=True), "README.md that is not of a push")
    assert "first: vnd evaluate" in fails(capsys, "push", run.parent, NAME)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: vnd.load(f"hf://{NAME}"), lambda: vnd.push(network(), NAME)):
        refused(call, "needs huggingface_hub; pip install 'variational-nested-dropout[hub]'", ModuleNotFoundError)
