"""The Hugging Face Hub: a network goes there as `save` writes it, with a card that has the figures of every size.

USER/NAME/{network.json, tensors-….safetensors, README.md, sizes.png}

The card begins with YAML, in which each figure is a metric of the `model-index`. `vnd.load("hf://USER/NAME")` is the
way back, and fetches JSON and safetensors alone.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from vnd import __version__
from vnd._files import put, write_text
from vnd._text import one_line, short
from vnd.methods import METHODS
from vnd.nn.profile import profile
from vnd.nn.state import NestedState, nested_part, unwrap
from vnd.pretrained import FromPixels
from vnd.report.html import DPI, LARGEST, NONE, number
from vnd.report.results import Column
from vnd.report.sizes import KINDS, LOOKS_OF_KINDS
from vnd.report.style import HALF, HEIGHT, LOOKS, canvas, legend, plot, png, size_axis
from vnd.serialization import MANIFEST, import_hub, save
from vnd.tasks import TASKS, task_of
from vnd.tasks.base import COSTS, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CARD, PICTURE, TENSORS = "README.md", "sizes.png", "tensors-*.safetensors"
NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
OWN = "library_name: vnd"  # in a card that was written here
COUNTS = ("parameters", "macs")  # figures that need no data


@dataclass(frozen=True)
class Figures:
    """Figures of a network at its sizes: rows with a `label`, a `kind` and numbers, and what these are of."""

    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Column]
    task: str = "other"  # as the Hub calls it
    data: str = ""  # what was measured on; empty where nothing was
    split: str = "test"

    @property
    def known(self) -> list[Column]:
        """The columns that any row has a number for, but for sizes and times of one machine."""
        machine = {entry["key"] for entry in COSTS} - {*COUNTS}
        return [c for c in self.columns.values() if c.key not in machine and any(_has(row, c.key) for row in self.rows)]

    @property
    def measures(self) -> list[Column]:
        """The columns of what was measured; of what was counted where nothing was measured."""
        return [column for column in self.known if column.key not in COUNTS] or self.known


def push(
    net: nn.Module,
    name: str,
    rows: Figures | Sequence[Mapping[str, Any]] | None = None,
    *,
    data: str = "test data",
    description: str = "",
    license: str | None = None,
    folder: str | Path | None = None,
    private: bool = False,
    dry_run: bool = False,
) -> str:
    """Push a network to the Hugging Face Hub, as `save` writes it, with a card and a picture of its figures.

    Args:
        net: A nested network, one extracted from it, or a plain one.
        name: "user/name"; the repository is made if need be, and what it holds of an earlier push is replaced.
        rows: Figures of each size, as `vnd.evaluate` gives them: dicts with a "label" and numbers.
            Without them the card has parameters and multiply-adds of each size that BatchNorm has statistics for.
        data: What they were measured on.
        description: Markdown that the card begins with.
        license: The Hub's word for it, "apache-2.0".
        folder: Where to write it first; a temporary folder if not given.
        private: Make the repository for its owner alone, if it is new.
        dry_run: Only write the folder; nothing is sent.

    Returns:
        What `vnd.load` takes: "hf://user/name", or of a dry run the folder. A network that is not one of `vnd.models`
        needs `model=` there.

    >>> import tempfile, vnd
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = push(vnd.models.ConvNet(width=0.1), "you/small", folder=place, dry_run=True)
    ...     vnd.load(folder).config["width"]
    0.1
    """
    hub = check(name)
    if not isinstance(net, nn.Module):
        raise ValueError(f"push: net must be a network; got a {type(net).__name__}")
    if folder is not None and not isinstance(folder, str | Path):
        raise ValueError(f"push: folder must be a path; got a {type(folder).__name__}")
    if folder is None and not dry_run:
        with tempfile.TemporaryDirectory(prefix="vnd-hub-") as temporary:
            options: dict[str, Any] = {"license": license, "private": private, "folder": temporary}
            return push(net, name, rows, data=data, description=description, **options)
    place = Path(tempfile.mkdtemp(prefix="vnd-hub-") if folder is None else folder)
    if (place / CARD).exists() and OWN not in (place / CARD).read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"push: {place} holds a {CARD} that is not of a push; give another folder")
    figures = rows if isinstance(rows, Figures) else figures_of(net, rows, data)
    save(net, place)
    drawn = picture(figures)
    if drawn is None:
        (place / PICTURE).unlink(missing_ok=True)
    else:
        put(place / PICTURE, lambda part: part.write_bytes(png(drawn, DPI, LARGEST)))
    write_text(place / CARD, card(hub, place, name, figures, description, license))
    if dry_run:
        return str(place)
    try:
        api = hub.HfApi(library_name="vnd", library_version=__version__)
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=place, allow_patterns=files_of(place), delete_patterns=[TENSORS, PICTURE],
            commit_message=f"vnd {__version__}",
        )  # fmt: skip
    except Exception as error:  # of the Hub and of the connection, which have no class in common
        how = "log in with hf auth login, or look at it with dry_run"
        raise OSError(f"push: {name} cannot be pushed: {one_line(error)}; {how}") from error
    return f"hf://{name}"


def check(name: object) -> Any:
    """Refuse what is no name of a repository; the package huggingface_hub."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"push: name must be USER/NAME, of letters, digits, '-', '_' and '.'; got {name!r}")
    return import_hub("push")


def files_of(folder: Path) -> list[str]:
    """The files that are pushed from a folder."""
    tensors = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["tensors"]
    return [file for file in (CARD, MANIFEST, PICTURE, tensors) if (folder / file).exists()]


def figures_of(net: nn.Module, rows: Sequence[Mapping[str, Any]] | None = None, data: str = "") -> Figures:
    """The figures of a network: of rows, of its own card if it came with the package, or what its sizes cost."""
    root = unwrap(net)
    task: Task | None = None
    if rows is None and isinstance(root, FromPixels) and root.card:
        rows = [{"label": _share(row["width"], row), **row, **row["test"]} for row in root.card["results"]]
        data, task = str(root.card["data"]["name"]), task_of(METHODS[root.card["recipe"]["method"]["name"]])
    elif rows is None:
        rows, data = _counted(net), ""
    named = [dict(row) if isinstance(row, Mapping) else {} for row in rows] if isinstance(rows, list | tuple) else []
    if not named or not all(row.get("label") for row in named):
        raise ValueError(
            "push: rows must be a list of dicts, each with a label, as vnd.evaluate gives them; at least one"
        )
    task = TASKS.get(str(named[0].get("task")), task)
    known = {field.name for field in fields(Column)}
    given = COSTS if task is None else task.columns
    columns = {entry["key"]: Column(**{k: v for k, v in entry.items() if k in known}) for entry in given}
    return Figures(_with_samples(named), columns, "other" if task is None else task.hub_task, data)


def card(hub: Any, folder: Path, name: str, figures: Figures, description: str, license: str | None) -> str:
    """The card of what a folder holds: YAML with the figures as `model-index`, then Markdown."""
    measured = {
        "task_type": figures.task, "dataset_type": figures.data or "none",
        "dataset_name": figures.data or "no data: counts", "dataset_split": figures.split if figures.data else None,
    }  # fmt: skip
    found = [
        hub.EvalResult(
            **measured, metric_type=column.key, metric_name=f"{column.heading}, {row['label']}",
            metric_value=float(row[column.key]),
            metric_args={"size": row["label"]} | {key: int(row[key]) for key in COUNTS if _has(row, key)},
        )
        for row in figures.rows for column in figures.measures if _has(row, column.key)
    ]  # fmt: skip
    about = hub.ModelCardData(
        model_name=name.partition("/")[2], library_name="vnd", license=license,
        pipeline_tag=None if figures.task == "other" else figures.task,
        tags=["variational-nested-dropout", "nested", "uncertainty"], eval_results=found or None,
    )  # fmt: skip
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    model = "" if manifest["model"] else ", model=plain"
    nested = manifest["kind"] == "nested"
    several = len(figures.rows) > 1
    row = sorted(figures.rows, key=lambda row: float(row.get("parameters") or 0))[(len(figures.rows) - 1) // 2]
    width = f"{row['fraction']:g}" if _has(row, "fraction") else f"vnd.shape(net, parameters={row.get('parameters')})"
    lines = ["size", *(column.heading for column in figures.known)]
    table = [lines, ["---"] * len(lines)]
    table += [[row["label"], *(number(row.get(c.key), c) for c in figures.known)] for row in figures.rows]
    where = f", measured on {figures.data}" if figures.data else ""
    paragraphs = [
        f"# {name.partition('/')[2]}",
        description.strip(),
        "One nested network that runs at every size: its first channels alone are a smaller network."
        if nested
        else "One network, trained once, that runs at every size of the table."
        if several
        else "A network of one size.",
        f"## Sizes\n\nFigures of each size{where}." if several else f"## Figures{where and ' ' + where[2:]}",
        "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in table),
        f"![Figures against size]({PICTURE})" if (folder / PICTURE).exists() else "",
        "## Use",
        "`pip install 'variational-nested-dropout[hub]'`",
        "```python\nimport vnd\n"
        + ("plain = ...  # the network that it was made from, of your own code: none is fetched\n" if model else "")
        + f'net = vnd.load("hf://{name}"{model})\n'
        + (
            f"answer = vnd.predict(net, x, width={width}, samples=6)  # .probs .entropy\n"
            f"small = vnd.extract(net, {width})  # plain torch layers\n"
            if nested
            else "answer = net(x)\n"
        )
        + "```",
        "`vnd.load` fetches JSON and safetensors, checks every tensor against its SHA-256, and runs no code from here.",
    ]
    return f"---\n{about.to_yaml().strip()}\n---\n\n" + "\n\n".join(part for part in paragraphs if part) + "\n"


def picture(figures: Figures) -> Figure | None:
    """The first measure, or else the multiply-adds, against the size: parameters, the length of a code, or a share."""
    columns = figures.known
    column = next((c for c in columns if c.better), next((c for c in columns if c.key == "macs"), None))
    axes = {
        "parameters": "parameters (log scale)",
        "length": "length of the code",
        "fraction": "share of the full size",
    }
    key = next((x for x in axes if len({row[x] for row in figures.rows if _has(row, x)}) > 1), None)
    if column is None or key is None:
        return None
    figure, axis = canvas(HALF, HEIGHT)
    rest = iter(LOOKS)
    drawn = [row for row in figures.rows if _has(row, column.key) and _has(row, key)]
    rows = sorted(drawn, key=lambda row: float(row[key]))
    kinds = dict.fromkeys(str(row.get("kind") or "uniform") for row in rows)
    for kind in kinds:
        some = [row for row in rows if str(row.get("kind") or "uniform") == kind]
        x, y = [float(row[key]) for row in some], [column.factor * float(row[column.key]) for row in some]
        plot(axis, x, y, LOOKS_OF_KINDS.get(kind) or next(rest), KINDS.get(kind, (kind,))[0] if len(kinds) > 1 else "_")
    size_axis(axis, [float(row[key]) for row in rows], axes[key])
    axis.set_ylabel(column.axis or column.heading)
    return legend(figure, axis) if len(kinds) > 1 else figure


def _counted(net: nn.Module) -> list[dict[str, Any]]:
    """Rows of what a network costs, at the sizes that it has statistics for, or at full size."""
    state: NestedState | None = getattr(nested_part(net), "_vnd_state", None)
    if state is None:
        return [{"label": "100 %", "parameters": sum(parameter.numel() for parameter in unwrap(net).parameters())}]
    rows = []
    for shape in dict.fromkeys((*(shape for shape, _ in state.statistics), state.full)):
        found = profile(net, shape)
        rows.append({"label": _share(None, vars(found)), "kind": "learned", **vars(found)})
    return sorted(rows, key=lambda row: float(row["parameters"]))


def _with_samples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose labels and kinds say the number of samples, too, where a size has several."""
    if len({row["label"] for row in rows}) == len(rows):
        return rows
    words = [f", {row.get('samples', 0)} samples" for row in rows]
    return [
        row | {"label": row["label"] + text, "kind": str(row.get("kind") or "uniform") + text}
        for row, text in zip(rows, words, strict=True)
    ]


def _share(width: float | None, row: Mapping[str, Any]) -> str:
    return f"{short(row['parameters'])} parameters" if width is None else f"{100 * width:.4g} %"


def _has(row: Mapping[str, Any], key: str) -> bool:
    value = row.get(key)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|") or NONE
