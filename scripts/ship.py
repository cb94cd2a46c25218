"""Make a shipped network of a run: cut it down, keep it nested, measure what is shipped, write its card.

From a nested run (`vnd train`) it takes the learned shape of at most so many parameters, and writes the folder
`src/vnd/pretrained/NAME`: network, normalisation, classes, BatchNorm's statistics for some sizes within it, and the
card. These sizes are the learned shapes of `--sizes`, in parameters; without it the widths 0.75, 0.5 and 0.25. The
card's numbers are measured here, on what was written and loaded again: validation and test images, and those out of
domain that the recipe names. Where `results.json` of the run has a row of the same shape, it is printed beside. With
`--half` the weights and their log α are kept as bfloat16; `load_pretrained` gives float32. More than 5 MB is refused,
and nothing is written. It takes seconds on a GPU, and many minutes on a CPU.

    python scripts/ship.py runs/RUN cifar10-bn3-small --parameters 105000
    python scripts/ship.py runs/RUN cifar10-bn3 --parameters 1100000 --sizes 350000,200000,110000 --half
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vnd
from vnd import pretrained
from vnd._files import write_text
from vnd._manifest import checksum
from vnd.data.batches import in_order
from vnd.data.images import Images
from vnd.distributions import BernoulliChain
from vnd.evaluation import open_run
from vnd.methods import Size
from vnd.models import MODELS
from vnd.nn import BayesLayer, Rule, Shape, to_nested
from vnd.nn.state import NestedState, state_of, unwrap
from vnd.nn.width import as_shape
from vnd.pretrained import CARD, FromPixels, plain_of
from vnd.serialization import save
from vnd.tasks import TrainedRun
from vnd.tasks.base import machine
from vnd.tasks.classification import Answers, answer, scores

MOST = 5_000_000  # bytes
PREFIX = "network."
FRACTIONS = (0.75, 0.5, 0.25)
LICENCE = "Apache-2.0, as the library; trained on {data}, which has terms of its own."
SCORES = ("accuracy", "nll", "brier", "ece", "aurc", "auroc", "aupr", "fpr95")


def ship(
    run: Path,
    name: str,
    parameters: float,
    checkpoint: Any = None,
    root: Path = pretrained.ROOT,
    sizes: Sequence[float] = (),
    half: bool = False,
) -> Path:
    """Write the folder of a shipped network.

    Args:
        run: Folder of the run.
        name: What `vnd.load_pretrained` is to call it.
        parameters: At most so many parameters, counted in the network of posterior means.
        checkpoint: "best" or "last"; as the recipe says if None.
        root: Folder of all shipped networks.
        sizes: Parameters of the smaller learned shapes that are measured; fractions of the width if there are none.
        half: Keep weights and log α as bfloat16.
    """
    if not name.replace("-", "").isalnum():
        raise ValueError(f"ship: the name must be letters, digits and hyphens, such as cifar10-bn3-small; got {name!r}")
    if (root / name).exists() and not (root / name / pretrained.CARD).exists():
        raise ValueError(f"ship: {root / name} is there and is no shipped network; remove it, or give another name")
    opened = open_run(run, checkpoint)
    state_of(opened.model)  # refuses a run of one size
    shape = vnd.shape(opened.model, parameters=parameters)
    description = {
        "classes": list(opened.splits.train.classes), "mean": list(opened.splits.mean),
        "std": list(opened.splits.std), "image": list(opened.splits.train.pixels.shape[1:]), "card": {},
    }  # fmt: skip
    sketch = cut(opened.model, shape, description)
    within_it = [vnd.shape(sketch, parameters=size) for size in sizes] if sizes else FRACTIONS
    shapes = {width: outside(as_shape(sketch, width)) for width in (1.0, *within_it)}
    samples = max(1, opened.recipe.evaluate.samples)
    for one in dict.fromkeys((shape, *shapes.values())):  # each by itself, as a sweep does
        opened.extract(Size("learned", "", one), "nested")
    net, folder = cut(opened.model, shape, description, shapes.values()), root / name
    for layer in (module for module in net.modules() if half and isinstance(module, BayesLayer)):
        layer.weight.data, layer.log_alpha.data = layer.weight.data.bfloat16(), layer.log_alpha.data.bfloat16()
    with tempfile.TemporaryDirectory() as place:  # what is shipped already stays until this one is whole
        draft = Path(place) / name
        fits(write(net, draft, {}), parameters)
        rows = []
        for width in shapes:
            rows.append(measured(opened, pretrained.read(draft), width, samples))
            show(rows[-1], run, shapes[width])
        fits(write(net, draft, card(opened, name, rows, samples)), parameters)
        pretrained.read(draft)
        for path in draft.iterdir():
            path.chmod(0o644)  # safetensors writes for its owner alone, and a wheel would keep it so
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(draft, folder)
    return folder


def fits(size: int, parameters: float) -> None:
    """Refuse what is too large."""
    if size > MOST:
        raise ValueError(
            f"ship: the folder must have at most {MOST:,} bytes; got {size:,} of --parameters {parameters:g}: "
            f"try {int(parameters * 0.97 * MOST / size):d}"
        )


def measured(opened: TrainedRun, net: Any, width: float | Shape, samples: int) -> dict[str, Any]:
    """What a width of the network that is shipped costs, and how good it is, from pixels between 0 and 1."""
    shape = as_shape(net, width)
    small = vnd.extract(net, width, keep="posterior").to(opened.device)
    sets = {"validation": opened.splits.validation, "test": opened.test()}

    def says(images: Images) -> Answers:
        batches = in_order(images, lambda pixels: pixels.float() / 255, opened.device)  # as a user would
        return answer(opened.method, small, batches, samples)

    strange = opened.outside(opened.recipe.evaluate)
    unknown = None if strange is None else says(strange).entropy
    counted = vnd.profile(net, width)
    row: dict[str, Any] = {
        "width": None if isinstance(width, Shape) else width, "shape": dict(shape),
        "parameters": counted.parameters, "macs": counted.macs,
    }  # fmt: skip
    for split, images in sets.items():
        said = says(images)
        pair = None if unknown is None or split != "test" else (said.entropy, unknown)
        found = scores(said.probs, said.entropy, torch.as_tensor(images.labels), opened.recipe.evaluate.bins, pair)
        row[split] = {key: found[key] for key in SCORES if key in found}
    return row


def card(opened: TrainedRun, name: str, rows: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    """What there is to say of the network."""
    recipe, splits, strange = opened.recipe, opened.splits, opened.outside(opened.recipe.evaluate)
    begun = json.loads((opened.folder / "environment.json").read_text(encoding="utf-8"))
    settings = recipe.to_dict()
    settings["data"]["folder"] = settings["evaluate"]["ood_folder"] = None  # nobody else has these
    size = {"train": len(splits.train), "validation": len(splits.validation), "test": len(opened.test())}
    return {
        "name": name,
        "title": f"{recipe.method_name} on {recipe.data.name}, cut out of {recipe.network.name}",
        "about": recipe.about,
        "input": f"pixels between 0 and 1, (B, {', '.join(map(str, splits.train.pixels.shape[1:]))})",
        "data": {"name": recipe.data.name, **size},
        "ood": None if strange is None else {"name": recipe.evaluate.ood, "test": len(strange)},
        "recipe": settings,
        "checkpoint": opened.checkpoint,
        "samples": samples,
        "results": rows,
        "measured_on": machine(opened.device),
        "trained_with": {key: begun.get(key) for key in ("versions", "gpus")},
        "commit": (begun.get("git") or {}).get("commit"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "licence": LICENCE.format(data=recipe.data.name),
    }


def show(row: dict[str, Any], run: Path, shape: Shape) -> None:
    """Print what was measured, and what `results.json` says of the same shape."""
    width = "a learned shape" if row["width"] is None else f"width {row['width']:g}"
    print(f"{width}, {row['parameters']:,} parameters, test: {told(row['test'])}", flush=True)
    path = run / "results.json"
    for other in json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []:
        if other.get("shape") == dict(shape):
            print(f"  results.json says of {other['label']}: {told(other)}", flush=True)


def told(row: dict[str, float]) -> str:
    """The numbers of a row for people."""
    return ", ".join(f"{key} {row[key]:.4f}" for key in ("accuracy", "ece", "auroc") if key in row)


@torch.no_grad()
def cut(net: nn.Module, shape: Shape, description: Mapping[str, Any], widths: Iterable[Shape] = ()) -> FromPixels:
    r"""Cut a nested network down to a shape that stays nested, and put its normalisation in front.

    Of every unit the first groups are left, each as large as it was, with the keep-logits they had. So
    $P(z_i = 1)$ is the same for each of them, and any smaller width is bit for bit the network that it was.

    Args:
        net: A nested network of `vnd.models`, on any device.
        shape: What is left of it.
        description: "mean", "std", "image", "classes" and "card"; see `FromPixels`.
        widths: Shapes within that whose BatchNorm statistics go along, of means and of samples; those of `shape` do.
    """
    root, state = unwrap(net), state_of(net)
    smaller, config = vnd.extract(net, shape, keep="nested"), getattr(root, "config", None)
    held = state_of(smaller)
    held.statistics = {key: held.statistics[key] for key in held.statistics if key[0] in (shape, *widths)}
    means = vnd.extract(net, shape, warn=False).state_dict()
    shapes = {name: list(value.shape) for name, value in means.items()}
    settings = {**description, "network": _name_of(root), "config": config, "shapes": shapes}
    example = torch.rand(1, *description["image"])
    small = to_nested(plain_of(settings), example, **_arguments(state, shape))
    weights = smaller.cpu().state_dict()
    weights = {name if name.startswith("_vnd_") else PREFIX + name: value for name, value in weights.items()}
    small.load_state_dict({"scale": small.scale, "shift": small.shift, **weights})
    assert isinstance(small, FromPixels)
    return small.eval()


def write(net: FromPixels, folder: Path, card: Mapping[str, Any]) -> int:
    """Save a network with its card; the bytes that it takes.

    Args:
        net: What `cut` gave.
        folder: Where to.
        card: What there is to say of it, plain JSON values.
    """
    net.description["card"] = dict(card)
    save(net, folder)
    description = dict(net.description)
    description["checksum"] = checksum(description)
    write_text(folder / CARD, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def within(shape: Shape) -> Shape:
    """A shape of the network that was cut, as the one that was cut out names its units."""
    return Shape({PREFIX + unit: groups for unit, groups in shape.items()})


def outside(shape: Shape) -> Shape:
    """The inverse of `within`."""
    return Shape({unit.removeprefix(PREFIX): groups for unit, groups in shape.items()})


def _name_of(root: nn.Module) -> str:
    name = next((name for name, known in MODELS.items() if type(root) is known), None)
    if name is None:
        raise ValueError(f"cut: the network must be one of {', '.join(MODELS)}; got a {type(root).__name__}")
    return name


def _arguments(state: NestedState, shape: Shape) -> dict[str, Any]:
    """Arguments of `to_nested`: as before, and for each unit the groups that are left of it."""
    rules = {PREFIX + pattern: rule for pattern, rule in state.arguments["rules"].items()}
    for unit, module in state.units.items():
        kept, base = shape[unit], min(module.base, shape[unit])
        prior = BernoulliChain(module.prior_logits[: kept - base].cpu()) if kept > base else None
        name = PREFIX + unit
        rules[name] = Rule(num_groups=kept, base=base, prior=prior).over(rules.pop(name, Rule()))
    return {**state.arguments, "rules": rules}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a nested run")
    parser.add_argument("name", help="what vnd.load_pretrained is to call it")
    parser.add_argument("--parameters", type=float, default=105_000, help="at most so many")
    sizes = {"type": lambda text: [float(size) for size in text.split(",")], "default": []}
    parser.add_argument("--sizes", **sizes, help="parameters of the learned shapes within it, with commas")
    parser.add_argument("--half", action="store_true", help="keep weights and log α as bfloat16")
    parser.add_argument("--checkpoint", choices=("best", "last"), help="as the recipe says if not given")
    parser.add_argument("--root", type=Path, default=pretrained.ROOT, help="where to, the package if not given")
    given = parser.parse_args()
    try:
        folder = ship(given.run, given.name, given.parameters, given.checkpoint, given.root, given.sizes, given.half)
    except (ValueError, OSError) as error:
        sys.exit(f"ship: {str(error).removeprefix('ship: ')}")
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
