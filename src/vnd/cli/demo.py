"""`vnd demo`: train once, run at every size, know when not to trust the answer; in three minutes, on any machine."""

from __future__ import annotations

import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rich

from vnd._page import page as write_page
from vnd._text import say
from vnd.evaluation import choose, open_run, results_of, write
from vnd.methods import Size
from vnd.nn.state import Shape
from vnd.report import html
from vnd.serialization import save
from vnd.tasks import TrainedRun
from vnd.tasks.classification import accuracy_of, sizes_table
from vnd.train.config import parse
from vnd.train.loop import fit
from vnd.train.run import LOCK, lock

MARK = ".vnd-demo"  # in the folder of a demo, which the next one may remove
PAGE = "page.html"
MARGIN = 0.01  # what the extracted network may lose of the full accuracy, on the validation images


def demo(out: Path = Path("runs/demo"), epochs: int | None = None, limit: int | None = None) -> None:
    """Train one nested Bayesian CNN on the embedded data, evaluate it at many sizes, and extract a small one.

    Out of domain are handwritten digits, which it has never seen. Everything is in the folder afterwards: the run, the
    extracted network for `vnd.load`, the numbers (results.json), a page with figures (report.html) and one that runs
    the network in the browser (page.html).

    Example: vnd demo --out runs/demo

    Args:
        out: Folder of the run; a demo that lies there already is replaced.
        epochs: Passes over the training images; those of the recipe `demo` if not given.
        limit: Train on so many images at most.
    """
    words = [] if epochs is None else [f"--train.epochs={epochs}"]
    recipe = parse("demo", words + ([] if limit is None else [f"--data.limit={limit}"]))
    if limit is not None and limit < recipe.train.batch:
        raise ValueError(f"demo: limit must be at least a batch, {recipe.train.batch}; got {limit}")
    for package, extra, what in (("matplotlib", "report", "report"), ("onnxscript", "export", "page")):
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"the demo's {what} needs {package}; pip install 'variational-nested-dropout[{extra}]'"
            )
    _make_room(out)
    start = time.perf_counter()
    say("Training one nested Bayesian network on Fashion-MNIST ...")
    if not fit(recipe, out):
        raise KeyboardInterrupt(f"saved in {out}; start over with: vnd demo")
    trained = time.perf_counter() - start
    say("Running it at every size, in and out of domain ...")
    run = open_run(out)
    results = results_of(run, recipe.evaluate, run.test(), "vnd demo")
    chosen = _extract(run, results["rows"], out / "extracted")
    results["chosen"] = chosen
    results["seconds"] |= {"train": round(trained, 1), "total": round(time.perf_counter() - start, 1)}
    report = html.write_run(write(results, out), out)
    say("Writing a page that runs it in the browser ...")
    write_page(out, out / PAGE)

    title = f"One training, {len(results['rows'])} sizes: {results['data']['test']:,} test images of Fashion-MNIST"
    rich.print(sizes_table(results["rows"], title, chosen["label"]))
    say(
        f"percentages: the same share of every layer; ≤: the learned shape with so many parameters\n"
        f"latency: one image, {results['machine']}; AUROC: entropy tells fashion from handwritten digits\n"
        f"← {chosen['reason']}: {chosen['parameters']:,} parameters\n\n"
        f"page:    {(out / PAGE).resolve()} (open it in a browser)\n"
        f"report:  {report.resolve()}\nnetwork: {(out / 'extracted').resolve()}"
    )


def _extract(run: TrainedRun, rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Choose a size by the validation images, and save its network."""
    method, model, validation = run.method, run.model, run.splits.validation
    normalise, samples = run.normalise, run.recipe.evaluate.samples
    sizes = {row["label"]: Size(row["kind"], row["label"], Shape(row["shape"])) for row in rows}
    scores = {label: accuracy_of(method, model, size, validation, normalise, samples) for label, size in sizes.items()}
    row = choose(rows, scores, MARGIN)
    save(run.extract(sizes[row["label"]]), folder)
    return {
        "label": row["label"],
        "parameters": row["parameters"],
        "reason": f"smallest within {100 * MARGIN:g} percentage point of the full accuracy, on validation images",
        "folder": str(folder),
        "validation": scores,
    }


def _make_room(out: Path) -> None:
    """Remove a demo that lies there, and mark the folder; refuse any other that holds something."""
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise ValueError(f"{out} holds something that is not a demo; give another --out")
    with lock(out):  # or else it is at work
        for path in out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        (out / MARK).touch()
