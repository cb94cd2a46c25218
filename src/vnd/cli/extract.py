"""`vnd extract`: the smaller network that a run holds, cut out."""

from __future__ import annotations

from pathlib import Path

import rich

from vnd._files import write_json
from vnd._text import say
from vnd.data.batches import in_order
from vnd.evaluation import open_run
from vnd.methods import Size
from vnd.methods.base import Single
from vnd.nn import shape
from vnd.nn.extract import Keep
from vnd.serialization import save
from vnd.tasks import task_of
from vnd.tasks.trained import BestOrLast


def extract(
    run: Path,
    parameters: float | None = None,
    macs: float | None = None,
    bytes: float | None = None,
    latency_ms: float | None = None,
    fraction: float | None = None,
    level: float | None = None,
    keep: Keep = "mean",
    augmented: bool | None = None,
    checkpoint: BestOrLast | None = None,
    out: Path | None = None,
) -> None:
    """Cut a smaller network out of a trained run: the learned shape that fits a budget; give exactly one.

    It is saved for `vnd.load`, which gives a plain torch module; its accuracy is that of the test images. Budgets are
    those of the network of posterior means.

    Example: vnd extract runs/first --parameters 150000

    Args:
        run: Folder of the run.
        parameters: At most so many parameters.
        macs: At most so many multiply-accumulates an image.
        bytes: At most so many bytes of parameters and buffers.
        latency_ms: At most so many milliseconds an image, measured here and now.
        fraction: The same share of every layer, in (0, 1].
        level: The learned shape at this level, in (0, 1].
        keep: "mean" gives torch's own layers, "posterior" keeps the uncertainty of the weights, "nested" all smaller
            sizes as well.
        augmented: Collect BatchNorm's statistics from images that are augmented as in training; as the recipe says if
            not given.
        checkpoint: The network with the best validation accuracy, or the last; as the recipe says if not given.
        out: Folder of the network; RUN/extracted/SIZE if not given.
    """
    opened = open_run(run, checkpoint, augmented)
    method, model, task = opened.method, opened.model, task_of(opened.method)
    if getattr(method, "placement", "after") == "before_norm":
        raise ValueError(
            f"extract: {run} is masked before its norms and has no smaller form; vnd evaluate runs it masked"
        )
    if task.not_extracted:
        raise ValueError(f"extract: {run} is {task.kind}: {task.not_extracted}")
    if isinstance(method, Single):
        how = f"as {opened.recipe.method_name} was trained; vnd.load('{run / opened.checkpoint}') gives it"
        raise ValueError(f"extract: {run} has one size, {how}")
    bayesian = getattr(method, "bayesian", False)
    if keep == "posterior" and not bayesian:
        raise ValueError(f"extract: {run} has no posterior over its weights to keep; leave out --keep posterior")
    example = next(iter(in_order(opened.test(), opened.normalise, opened.device, batch=1)))
    budget = {
        "parameters": parameters, "macs": macs, "bytes": bytes, "latency_ms": latency_ms, "fraction": fraction,
        "level": level,
    }  # fmt: skip
    chosen = shape(model, **budget, example_input=example)
    name, value = next((name, value) for name, value in budget.items() if value is not None)
    size = Size("uniform" if name == "fraction" else "learned", f"{name} {value:.10g}", chosen)
    samples = max(1, opened.recipe.evaluate.samples) if bayesian and keep != "mean" else 0
    small = opened.extract(size, keep)
    folder = out or run / "extracted" / f"{name}-{value:.10g}"
    save(small, folder)
    row = task.cut_row(opened, size, small, keep, samples)
    facts = {**row, "keep": keep, "samples": samples, "run": str(run), "checkpoint": opened.checkpoint}
    facts |= {"mean": opened.splits.mean, "std": opened.splits.std}
    write_json(folder / "extracted.json", facts)
    rich.print(task.cut_table(row, f"extracted from {run}, on {len(opened.test()):,} test images"))
    given = ""
    if (network := opened.recipe.network).is_own:
        train = opened.splits.train
        given = (
            f", model={network.call(network.arguments(train.pixels.shape[1:], task.num_outputs(len(train.classes))))}"
        )
    say(f'network: {folder.resolve()}\nload it: vnd.load("{folder}"{given})')
