"""One HTML file in which anyone can run a network at every size: a slider, a picture, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vnd import __version__
from vnd._export.coded import is_coded
from vnd._page import coded, document, pictures
from vnd._page.classifier import of_network, of_run
from vnd.evaluation import open_run
from vnd.nn.state import Shape, unwrap

__all__ = ["page"]

Tell = Callable[[str], object]


def page(
    run_or_net: str | Path | nn.Module,
    path: str | Path,
    widths: Sequence[Shape | float] | None = None,
    *,
    images: Any = None,
    check: tuple[Tensor, Tensor] | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    risk: float = 0.05,
    samples: int | None = None,
    classes: Sequence[str] | None = None,
    title: str | None = None,
    example_input: Tensor | None = None,
    tell: Tell = lambda words: None,
) -> dict[str, Any]:
    r"""Write a page that runs a network in the browser, at every one of its widths, on pictures of the visitor's own.

    One HTML file, which opens from a folder and makes no request: onnxruntime-web and the network are in it. Of a
    classifier it has a slider over its widths, the bars of its layers, and of a picture the answer, a tick for each
    draw of the weights, and "I would rather not say" where the doubt is above the threshold that
    `vnd.runtime.selective` finds on `validation`. Of an auto-encoder the slider is the length of the code; of a
    probabilistic UNet, the length of the latent that its masks are drawn from. The draws are those of NumPy's
    generator, so that `vnd.runtime` gives the same numbers for the same seed.

    A run gives its own widths, those of its evaluation, and its validation and test images are what is measured on.
    None of its images is in the page, but for those that come with the package and may be shown to anyone.

    Args:
        run_or_net: The folder of a trained run; or a network that takes pixels between 0 and 1, (B, C, H, W): a
            classifier, recalibrated at the widths. Networks with a code or a latent take what they were trained on.
        path: The file.
        widths: Widths of a network; None for those that it has BatchNorm statistics for, else 1, 1/2 and 1/4.
        images: Pictures of your own to show, uint8 or floats between 0 and 1, (N, C, H, W): they are in the page, for
            everyone who has it. Of a run True for the first ten of its test images.
        check: Inputs and classes (N,) to measure the accuracy on, of a network.
        validation: Inputs and classes to fit the threshold on, of a network; without it nothing is withheld.
        risk: Largest share of wrong ones among the answers that are given.
        samples: Draws of the weights for an answer, or masks of a picture; None for as many as a run's evaluation has,
            else 6.
        classes: Names of the classes; None for those that the network has, else numbers.
        title: Of the page.
        example_input: An input of a network without a conversion of its own.
        tell: Called with words about each part of the work.

    Returns:
        "bytes" of the page and of the networks in it, "kind", and "widths" as the page tells them.

    >>> import tempfile, torch, vnd
    >>> layers = torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    >>> net = vnd.to_nested(torch.nn.Sequential(*layers), torch.zeros(1, 1, 8, 8), num_groups=4).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     told = vnd.page(net, f"{folder}/page.html", widths=(1.0, 0.5))
    >>> told["kind"], [width["kept"] for width in told["widths"]]
    ('classes', [[8], [16]])
    """
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"page: path must end in .html; got {path.name}")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or not 2 <= samples <= 64):
        raise ValueError(f"page: samples must be a whole number in 2 … 64; got {samples!r}")
    if isinstance(risk, bool) or not isinstance(risk, float | int) or not 0 <= risk <= 1:
        raise ValueError(f"page: risk must lie in [0, 1]; got {risk!r}")
    if isinstance(images, bool) and (not images or isinstance(run_or_net, nn.Module)):
        raise ValueError(f"page: images must be pictures to show, (N, C, H, W), or of a run True; got {images}")
    if isinstance(run_or_net, nn.Module):
        net, run, shown = run_or_net, None, images
        data = None
    else:
        given = {"widths": widths, "check": check, "validation": validation, "classes": classes}
        if told := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"page: a run has its own {', '.join(told)}; leave out what it has")
        run = open_run(Path(run_or_net))
        net, data, shown = run.model, run.recipe.data.name, images
    if samples is None:
        evaluated = 0 if run is None else getattr(run.recipe.evaluate, "samples", 0)
        samples = evaluated if 2 <= evaluated <= 64 else 6
    if is_coded(unwrap(net)):
        made: Any = coded.of(net, run, samples, example_input, tell)
    elif run is None:
        made = of_network(net, widths, check, validation, risk, samples, classes, example_input, tell)
    else:
        made = of_run(run, risk, samples, tell)
    if shown is True and run is not None:
        shown = run.test().take(range(min(10, len(run.test()))))
    image = made.facts["image"]
    found, credits = ([], list[str]()) if shown is None else (pictures.given(shown, image), [])
    for some, whose in (pictures.of_training(data, image) if data else ([], []), made.others(data)):
        found, credits = found + some, credits + whose
    name = title or (run.recipe.about if run is not None else "") or type(unwrap(net)).__name__
    facts = {
        **made.facts, "title": name, "vnd": __version__, "credits": credits, "pictures": pictures.encoded(found)
    }  # fmt: skip
    tell("writing the page")
    size = document.write(path, f"{name}: at every size", facts, made.networks)
    return {
        "kind": facts["kind"], "bytes": size, "networks": {name: len(x) for name, x in made.networks.items()},
        "widths": facts.get("widths"),
    }  # fmt: skip
