"""`vnd distill`: a small deterministic nested student of a trained Bayesian nested network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from vnd._files import write_json
from vnd._text import say
from vnd.cli.train import check_free
from vnd.evaluation import open_run
from vnd.functional import concentration
from vnd.methods import Distills, Size, Sizes
from vnd.metrics import smallest_width
from vnd.nn.correlation import WIDTHS
from vnd.report.curves import correlation_maps, heat_maps
from vnd.report.style import png
from vnd.report.theory import Simplex, merged, project, simplex
from vnd.tasks import TrainedRun
from vnd.tasks.classification import correlation, measure
from vnd.tasks.trained import BestOrLast
from vnd.train.config import parse
from vnd.train.loop import fit
from vnd.train.recipe import Recipe

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)  # of the images that are more certain than the one shown
SAMPLES = 6  # draws of a student's last layer, the paper's way of inference; the closed form is beside it
DRAWS, DPI, MOST = 60, 130, 400_000  # draws of the teacher in a picture, its resolution, and its most bytes


def distill(
    run: Path,
    keep: float | None = None,
    parameters: float | None = None,
    threshold: float = 0.9,
    checkpoint: BestOrLast | None = None,
    analyze: bool = False,
    images: Sequence[int] = (),
    out: Path | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Distill a trained Bayesian nested network into a small deterministic nested student (SN³).

    How alike the uncertainties of its widths are proposes the share of every layer to keep; then the student is
    trained, by the teacher's recipe with method sn3: --SECTION.KEY VALUE replaces a key of it.

    Examples: vnd distill runs/first --keep 0.25 --train.epochs 20
              vnd distill runs/first --parameters 30000

    Args:
        run: Folder of the teacher's run.
        keep: Share of every layer that the student has; what the correlations propose if not given.
        parameters: In its place, at most so many parameters, in the teacher's learned shape.
        threshold: The proposal is the smallest width whose correlation with the full one exceeds this.
        checkpoint: The teacher's best or last network; as its recipe says if not given.
        analyze: The analysis alone.
        images: Numbers of validation images of the picture, chosen by their uncertainty if not given.
        out: Folder of the student's run; RUN-sn3 if not given.
        overrides: Keys of the student's recipe to replace.
    """
    if keep is not None and parameters is not None:
        raise ValueError(f"distill: give --keep or --parameters, not both; got {keep:g} and {parameters:g}")
    teacher = open_run(run, checkpoint)
    if not getattr(teacher.recipe.method, "student", None):
        what = "no Bayesian nested network that classifies; train one with vnd train, method bn3"
        raise ValueError(f"distill: {run} is {what}")
    if not -1 <= threshold < 1:
        raise ValueError(f"distill: threshold must lie in [-1, 1); got {threshold:g}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("distill: it runs in one process; use vnd train with method sn3 for several")
    count = len(teacher.splits.validation)
    if not all(0 <= number < count for number in images):
        raise ValueError(f"distill: images must be numbers of validation images, below {count}; got {list(images)}")
    folder = out or run.with_name(f"{run.resolve().name}-sn3")
    check_free(folder)
    open_yet = keep is None and parameters is None
    student_recipe(teacher, 1.0 if open_yet else keep, overrides, parameters)  # what is wrong is said before any work
    said = analysis(teacher, threshold)
    write_json(folder / "correlation.json", said)
    figure = heat_maps(said["labels"], correlation_maps([said]), run.resolve().name)
    (folder / "correlation.png").write_bytes(png(figure, DPI, MOST))
    share = said["proposed"] if open_yet else keep
    words = f"the smallest width that correlates with the full one by more than {threshold:g}: {said['proposed']:g}"
    say(f"{words}\ncorrelations: {folder / 'correlation.json'}, {folder / 'correlation.png'}")
    if analyze:
        return
    recipe = student_recipe(teacher, share, overrides, parameters)
    if not fit(recipe, folder):
        raise KeyboardInterrupt(f"saved in {folder}; go on with: vnd train --resume {folder}")
    if len(teacher.splits.validation.classes) > 2:
        _draw_simplex(teacher, open_run(folder, "last"), folder / "simplex.png", images)
        say(f"picture: {folder / 'simplex.png'}")
    say(f"done: {folder}\nevaluate it with: vnd evaluate {folder}")


def analysis(teacher: TrainedRun, threshold: float) -> dict[str, Any]:
    """Correlations of predictive entropy between widths, on the validation images and out of domain, and a proposal.

    Paper: Sec. 3.5, the widths 0.1, 0.2 … 1.
    """
    options = dataclasses.replace(
        teacher.recipe.evaluate, sizes=Sizes(fractions=WIDTHS), inference=("mc",), repeats=1, bn_images_sweep=()
    )
    steps = measure(teacher, options, teacher.splits.validation, teacher.outside(options))
    shown = track(steps, "correlations", total=len(WIDTHS), console=Console(stderr=True), transient=True)
    said = correlation(list(shown))
    assert said is not None
    index = smallest_width(torch.tensor(said["inside"]), threshold)
    return {**said, "widths": list(WIDTHS), "threshold": threshold, "proposed": WIDTHS[index]}


def student_recipe(
    teacher: TrainedRun, keep: float | None, overrides: Sequence[str], parameters: float | None = None
) -> Recipe:
    """The teacher's recipe with method sn3 for a share of every layer or so many parameters, some keys replaced."""
    own = teacher.recipe.to_dict()
    own["about"] = f"SN³ of {teacher.folder.resolve().name}"
    teachers: Any = teacher.recipe.method
    own["method"] = {
        "name": teachers.student, "teacher": str(teacher.folder.resolve()), "checkpoint": teacher.checkpoint,
        "keep": keep, "parameters": parameters,
    }  # fmt: skip
    own["train"]["loss_temperature"] = 0.0  # what it learns is the teacher's confidence
    own["evaluate"] |= {"inference": ["mc", "mean"], "samples": SAMPLES, "bn_images_sweep": [], "repeats": 1}
    own["evaluate"]["sizes"] = {"fractions": [0.25, 0.5, 0.75, 1.0]}
    recipe = parse(own, overrides)
    if isinstance(recipe.method, Distills):
        recipe.method.kept(teacher.model)  # a size that this teacher does not have
    return recipe


def _draw_simplex(teacher: TrainedRun, student: TrainedRun, path: Path, wanted: Sequence[int]) -> None:
    """Some images between three classes each: the teacher's draws as points, the student's Dirichlet as contours."""
    images = teacher.splits.validation
    x = torch.cat(list(teacher.batches(images)))
    network = teacher.extract(_full(teacher), "posterior")
    order = torch.as_tensor(teacher.method.predict(network, x, 6).entropy).argsort().cpu()
    chosen = order[(torch.tensor(SHARES) * (len(order) - 1)).long()]
    chosen = torch.tensor([*wanted]) if wanted else chosen
    draws = torch.stack([teacher.method.predict(network, x[chosen], 1).probs for _ in range(DRAWS)], 1).cpu()
    with torch.no_grad():
        own = concentration(student.extract(_full(student))(x[chosen])).cpu()
    panels = []
    for index, (points, spread) in enumerate(zip(draws, own, strict=True)):
        first, second, third = three = tuple(points.mean(0).topk(3).indices.tolist())
        names = images.classes[first], images.classes[second], images.classes[third]
        title = f"labelled {images.classes[int(torch.as_tensor(images.labels)[chosen[index]])]}"
        panels.append(Simplex(project(points.numpy(), three), merged(spread.numpy(), three), names, title))
    path.write_bytes(png(simplex(panels), DPI, MOST))


def _full(opened: TrainedRun) -> Size:
    """The full width of a run's network."""
    return opened.method.sizes(opened.model, Sizes(fractions=(1.0,)))[0]
