"""Names that nobody would search for: none may be an identifier, a key of a recipe, an option or a column in `src`.

Nor may one be an identifier or a key of tests, benchmarks, examples and scripts (`TEST_NAMES` are meant there).

`WORDS` says what each is called instead. Prose is not looked at: *which* and *every* are English. But a docstring
begins with the noun or the verb that a reader would search for, not with *What*, *Whether* or *How*.

    python scripts/vocabulary.py             # exit code 1 and one line for each name in a package that is `CLEAN`
    python scripts/vocabulary.py --all       # the same for all of src, and how many there are in each package
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SRC = Path(__file__).resolve().parents[1] / "src" / "vnd"
WORDS = {  # private word → the field's own; also as a part of a longer name, `log_temper`
    "annotators": "synthetic_graders", "calibrate": "recalibrate", "Certain": "Deterministic…",
    "Chained": "LearnsLength", "Coder": "AutoencoderMethod", "deviation": "std", "distil": "distill",
    "Errand": "EighJob", "Finished": "TrainedRun", "Growing": "CapacitySchedule", "Half": "PendingUpdate",
    "Lesson": "DistillationCache", "Move": "UpdateGroup", "optimiser": "optimizer",
    "owner_names": "group_names", "owners": "groups", "painted": "to_uint8", "Part": "DistillationBatch",
    "Plan": "NestedState", "readings": "inference", "rungs": "fixed_budgets",
    "scene": "LatentViews", "session": "TrainState", "settle": "freeze_order_after", "Sliced": "TrainableSubnet",
    "subject": "TrainedRun", "temper": "loss_temperature", "Turn": "PreconditionGroup", "Untempered": "…Defaults",
    "widen": "to_float32",
}  # fmt: skip
WHOLE = {  # the same, where the whole name is this word: as a part it has a plain meaning
    "both_ends": "min", "out_of_domain": "ood", "Stop": "GracefulStop", "warm_up": "warmup", "Watch": "ProgressLogger",
}  # fmt: skip
KEYS = {  # of recipes and of results, by their section
    "data.views": "repeat_epochs",
    "evaluate.calibration": "bn_images", "evaluate.counts": "num_mask_samples",
    "evaluate.drawn": "num_generated", "evaluate.statistics": "bn_images_sweep", "method.noise": "likelihood_std",
    "method.spread": "length_kl_weight",
    "evaluate.which": "checkpoint", "network.code": "latent_dim", "optimizer.second": "beta2",
    "schedule.every": "step_size", "schedule.factor": "gamma",
}  # fmt: skip
MODULES = {  # files
    "advance": "ngd", "course": "ngd",
    "canvas": "style", "channels": "dependency", "differences": "objective", "entries": "grouping",
    "families": "grouping", "files": "_manifest", "finished": "…", "keep": "archive", "marked": "inject",
    "opening": "summary", "origins": "provenance", "plan": "state", "plates": "figures", "scene": "…", "sliced": "…",
    "trace": "dependency", "trial": "verify_slicing", "watch": "progress", "words": "_text",
}  # fmt: skip
TEST_NAMES = {"widen", "optimiser.lr"}  # a layer beside one called `narrow`; a key that is refused
FIRST = re.compile(r"(What|Whether|How|Which|Who|Whose|Where)\b")  # word of a docstring that says no name
SECTIONS = {key.partition(".")[0] for key in KEYS}
# Packages that must have none; "" is the top.
CLEAN = (
    "", "_export", "_page", "cli", "data", "distributions", "methods", "metrics", "models", "nn", "optim", "pretrained",
    "recipes", "report", "sweeps", "tasks", "train",
)  # fmt: skip


def names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Identifiers, and strings that are used as keys: of dictionaries, subscripts and `Literal`, and `get`."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, line
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name, line
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                yield name, line
            case ast.Subscript(slice=ast.Tuple(elts=[*values])):
                yield from ((x.value, line) for x in values if isinstance(x, ast.Constant) and isinstance(x.value, str))
            case ast.Dict(keys=keys):
                for key in keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, key.lineno
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
                yield name, line


def questions_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings that begin with a question word: their line, and the word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = FIRST.match(ast.get_docstring(node) or "")
            if first:
                yield getattr(node, "lineno", 1), first[0]


def private(name: str) -> str | None:
    """What a name should be, if it is a private word or has one in it.

    >>> private("log_temper"), private("which"), private("whichever"), private("DistilLoss"), private("Planet")
    ('loss_temperature', 'checkpoint', None, 'distill', None)
    """
    if name in WHOLE:
        return WHOLE[name]
    if name in ("widen_factor", "InferenceSession", "SessionOptions"):  # of ResNeXt's authors, and onnxruntime's own
        return None
    lower = {word.lower(): other for word, other in WORDS.items() if word[0].islower()}
    parts = re.findall(r"[A-Z]?[a-z]+", name)
    return WORDS.get(name) or next((lower[part.lower()] for part in parts if part.lower() in lower), None)


def in_yaml(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each key that is a private word, and what it should be."""
    if isinstance(value, dict):
        for key, inner in value.items():
            names = (*path, *str(key).split("."))  # sweeps have dotted keys
            better = next(filter(None, map(private, str(key).split("."))), None)
            section = next((i for i, name in enumerate(names) if name in SECTIONS), len(names))
            better = better or KEYS.get(".".join((*names[section : section + 1], names[-1])))
            if better:
                yield ".".join(names), better
            yield from in_yaml(inner, names)


def hits(src: Path) -> Iterator[tuple[str, str]]:
    """Package, and what is wrong, for each private word below a folder."""
    for path in sorted(src.rglob("*")):
        package = path.relative_to(src).parts[0] if path.parent != src else ""
        where = path.relative_to(src.parent)
        if path.suffix == ".py":
            if path.stem in MODULES:
                yield package, f"{where}: the module is {MODULES[path.stem]}"
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name, line in names_of(tree):
                if better := private(name):
                    yield package, f"{where}:{line}: {name} is {better}"
            for line, first in questions_of(tree):
                yield package, f"{where}:{line}: a docstring begins with a noun or a verb, not with {first}"
        elif path.suffix in (".yaml", ".json"):
            text = path.read_text(encoding="utf-8")
            for name, better in in_yaml(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)):
                yield package, f"{where}: {name} is {better}"


def beside(root: Path) -> Iterator[str]:
    """What is wrong in the Python files beside the package: identifiers and keys alone."""
    for folder in ("benchmarks", "examples", "scripts", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            if path.name not in ("vocabulary.py", "test_vocabulary.py"):
                for name, line in names_of(ast.parse(path.read_text(encoding="utf-8"))):
                    if name not in TEST_NAMES and (better := private(name)):
                        yield f"{path.relative_to(root)}:{line}: {name} is {better}"


def main() -> None:
    """Report, and fail where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    everything = parser.parse_args().all
    found = list(hits(SRC))
    wrong = [line for package, line in found if everything or package in CLEAN] + [*beside(SRC.parents[1])]
    print("\n".join(wrong), end="\n" if wrong else "")
    if everything:
        print(dict(Counter(package for package, _ in found)))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
