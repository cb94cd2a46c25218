"""Conversion of real networks: one row each of what has to hold, and a non-zero exit code for a row that is wrong.

    make zoo                                              # all rows, two processes
    python scripts/zoo.py --only 'bert*' --out rows.json  # a glob of names; several are parted by commas
    python scripts/zoo.py --write                         # all rows, into docs/results/zoo.json and docs/zoo.md

Networks of transformers and timm are small and have random weights; norms, biases and running statistics are random,
too. A row compares the full width with the plain network, in float32 and float64; the masked network with the
extracted one at three widths, in float64, where channels are sorted by magnitude; and tries gradients, save and load,
deepcopy, torch.compile without graph breaks (backend eager), and torch.export of the extracted network. Where the last
two fail on the plain network, too, the row says so, and is not wrong. *Left* is the share of the parameters that is
left at a quarter of the width, without tables whose length is that of the vocabulary.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "docs" / "results" / "zoo.json", ROOT / "docs" / "zoo.md"
BEGIN, END = "<!-- zoo: begin -->", "<!-- zoo: end -->"
WIDTHS = (0.25, 0.5, 0.75)
FULL32, FULL64, EXACT = 1e-6, 1e-12, 1e-12
# Most that may be left at a quarter width, by kind: without residual streams, and with them.
LEFT: dict[str, tuple[float | None, float | None]] = {
    "cnn": (0.60, 0.10), "transformer": (None, 0.15), "other": (None, None),
}  # fmt: skip
OUTPUT: str | None = None  # of the row that is made, the tensor that counts
MEDIAN = 0.40  # of the convolutional networks without residual streams
CHECKS = ("gradients", "saved", "copied", "compiled", "exported")
# What is known to fail, and why: (name, check) → reason. A failure that is gone has to go from here, too.
EXPECTED: dict[tuple[str, str], str] = {
    ("wavlm", "left_residual"): "its attention is one function of torch's, given weights of other modules",
    ("timm edgenext", "left_residual"): "its split convolutions and the heads of its attention tie all channels",
    ("branching", "converts"): "which of its layers runs depends on the values",
    ("mixtral", "converts"): "which of its experts run depends on the values",
}


# -- one row ----------------------------------------------------------------------------------------------------------


def row(name: str) -> dict[str, Any]:
    """All that is said of a network."""
    import torch

    import vnd
    from zoo_networks import NETWORKS, randomise

    network = NETWORKS[name]
    torch.manual_seed(len(name))
    global OUTPUT
    OUTPUT = network.output
    plain = randomise(network.make()).double().eval()
    example = _cast(network.example(), torch.float64)
    found: dict[str, Any] = {
        "name": name, "source": network.source, "kind": network.kind, "vocabulary": network.vocabulary is not None,
        "parameters": sum(x.numel() for x in plain.parameters()),
    }  # fmt: skip
    start = time.perf_counter()
    try:
        net = vnd.to_nested(plain, example, order="magnitude", residual=True, output=OUTPUT).eval()
    except Exception as error:
        return found | {"converts": _one_line(error)}
    found |= {"converts": True, "seconds": time.perf_counter() - start, "units": len(vnd.describe(net).rows())}
    # no order here: sorted sums are rounded otherwise
    plain32, example32 = copy.deepcopy(plain).float(), _cast(example, torch.float32)
    narrow = vnd.to_nested(plain32, example32, output=OUTPUT).eval() if _nests(plain32, example32) else None
    found["full32"] = _try(lambda: _gap(_run(plain32, example32), _run(narrow or plain32, example32)))
    wide = vnd.to_nested(plain, example, residual=True, output=OUTPUT).eval()
    found["full64"] = _try(lambda: _gap(_run(plain, example), _run(wide, example)))
    found["sorted"] = _try(lambda: _gap(_run(plain, example), _run(net, example)))
    tables = _tables(plain, network.vocabulary)
    found["left"] = _try(lambda: 1.0 if narrow is None else _left(narrow, plain, tables))
    found["left_residual"] = _try(lambda: _left(net, plain, tables))
    found["whole"] = {"all": "nothing without residual=True"} if narrow is None else dict(vnd.describe(narrow).whole)
    found["whole_residual"] = dict(vnd.describe(net).whole)
    batch = [example]
    vnd.recalibrate(net, batch, widths=(*WIDTHS, 1.0))
    found["exact"] = _try(lambda: max(_masked_against_extracted(net, example, width) for width in WIDTHS))
    found["gradients"] = _try(lambda: _gradients(net, plain, example))
    found["saved"] = _try(lambda: _saved(net, plain, example))
    found["copied"] = _try(lambda: _copied(net, example))
    small = vnd.extract(net, 0.5)
    vnd.set_width(net, 0.5)
    found["compiled"] = _or_alike(lambda: _compiled(net, example), lambda: _compiled(plain, example))
    found["exported"] = _or_alike(lambda: _exported(small, example), lambda: _exported(plain, example))
    return found


def _nests(plain: Any, example: Any) -> bool:
    """Whether anything can be nested without residual streams; where nothing can, that is an error of its own."""
    import vnd

    try:
        vnd.to_nested(plain, example, output=OUTPUT)
    except ValueError as error:
        if "nothing" in str(error):
            return False
        raise
    return True


def _cast(example: Any, dtype: Any) -> Any:
    from structures import cast

    return cast(example, dtype)


def _run(net: Any, example: Any, grad: bool = False) -> Any:
    """All floating-point outputs on an example, as one vector."""
    import torch

    from vnd.nn.arguments import pick_tensor, tensors_of

    args, kwargs = _arguments(example)
    torch.manual_seed(0)  # for networks that draw at random, as ViLT does its patches
    with torch.set_grad_enabled(grad):
        out = net(*args, **kwargs)
        tensors = list(tensors_of(out if OUTPUT is None else pick_tensor(out, OUTPUT, "zoo")))
    return torch.cat([x.flatten() for x in tensors if x.is_floating_point()])


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


def _gap(wanted: Any, given: Any) -> float:
    """Largest difference relative to the largest value."""
    if wanted.shape != given.shape:
        raise ValueError(f"{tuple(given.shape)} values for {tuple(wanted.shape)}")
    if not (wanted.isfinite().all() and given.isfinite().all()):
        raise ValueError("values that are not finite")
    return float((wanted - given).abs().max() / wanted.abs().max())


def _tables(plain: Any, vocabulary: int | None) -> set[str]:
    """Parameters as long as the vocabulary: embeddings, and heads that are tied to them or look alike."""
    parameters = plain.named_parameters(remove_duplicate=False)
    return {name for name, x in parameters if vocabulary is not None and x.dim() and x.size(0) == vocabulary}


def _left(net: Any, plain: Any, tables: set[str]) -> float:
    import vnd

    small = vnd.extract(net, 0.25)
    sizes = [sum(x.numel() for name, x in m.named_parameters() if name not in tables) for m in (small, plain)]
    return sizes[0] / sizes[1]


def _masked_against_extracted(net: Any, example: Any, width: float) -> float:
    import vnd

    with vnd.width(net, width):
        masked = _run(net, example)
    return _gap(masked, _run(vnd.extract(net, width), example))


def _gradients(net: Any, plain: Any, example: Any) -> bool:
    """Finite, and there for each parameter that the plain network has one for."""
    import vnd

    trained, original = copy.deepcopy(net).train(), copy.deepcopy(plain).train()
    (_run(trained, example, grad=True).square().mean() + 1e-6 * vnd.kl(trained)).backward()
    _run(original, example, grad=True).square().mean().backward()
    theirs, ours = dict(original.named_parameters()), dict(trained.named_parameters())
    missing = [n for n, x in theirs.items() if x.grad is not None and n in ours and ours[n].grad is None]
    wild = [n for n, x in ours.items() if x.grad is not None and not x.grad.isfinite().all()]
    if missing or wild:
        raise ValueError(f"no gradient of {missing[:3]}, none that is finite of {wild[:3]}")
    return True


def _saved(net: Any, plain: Any, example: Any) -> bool:
    """A nested network and an extracted one are the same function after save and load."""
    import vnd

    for one in (net, vnd.extract(net, 0.5)):
        with tempfile.TemporaryDirectory() as folder:
            again = vnd.load(vnd.save(one, folder), model=plain)
        if (gap := _gap(_run(one, example), _run(again, example))) > 0:
            raise ValueError(f"another function, by {gap:.0e}")
    return True


def _copied(net: Any, example: Any) -> bool:
    import vnd

    twin = copy.deepcopy(net)
    with vnd.width(net, 0.5), vnd.width(twin, 0.5):
        if (gap := _gap(_run(net, example), _run(twin, example))) > 0:
            raise ValueError(f"another function, by {gap:.0e}")
    return True


def _compiled(net: Any, example: Any) -> bool:
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    return _same(net, compiled, example)


def _exported(small: Any, example: Any) -> bool:
    import torch

    return _same(small, torch.export.export(small, *_arguments(example)).module(), example)


def _same(net: Any, other: Any, example: Any) -> bool:
    if (gap := _gap(_run(net, example), _run(other, example))) > EXACT:
        raise ValueError(f"another function, by {gap:.0e}")
    return True


def _try(check: Callable[[], Any]) -> Any:
    """The result, or what went wrong in a line."""
    try:
        return check()
    except Exception as error:
        return _one_line(error)


def _or_alike(check: Callable[[], bool], of_plain: Callable[[], bool]) -> Any:
    """The result; where it fails, but the plain network fails as well, "plain, too"."""
    said = _try(check)
    if said is True:
        return said
    plain = _try(of_plain)
    return said if plain is True else f"plain, too: {plain}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}"


# -- all rows ---------------------------------------------------------------------------------------------------------


def run_rows(names: Iterable[str], processes: int, timeout: float) -> list[dict[str, Any]]:
    """Rows of networks, each in a process of its own, which is ended when its time is up."""
    import torch
    import torch._dynamo
    import torch.export  # what every row needs is there before the processes part

    from zoo_networks import import_timm

    torch.set_num_threads(1)
    import_timm()
    fork, waiting, rows = multiprocessing.get_context("fork"), deque(names), []
    running: dict[Connection, tuple[str, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            name, (ours, theirs) = waiting.popleft(), fork.Pipe(duplex=False)
            process = fork.Process(target=_child, args=(name, theirs))
            process.start()
            theirs.close()
            running[ours] = name, process, time.monotonic()
        for ours in wait(list(running), timeout=1):
            name, process, start = running.pop(ours)
            try:
                rows.append(ours.recv())
            except EOFError:
                rows.append({"name": name, "converts": "the process died"})
            process.join()
            rows[-1]["took"] = time.monotonic() - start
            print(_progress(rows[-1]), file=sys.stderr, flush=True)
        for ours, (name, process, start) in list(running.items()):
            if time.monotonic() - start > timeout:
                process.kill()
                process.join()
                del running[ours]
                rows.append({"name": name, "converts": f"not done in {timeout:.0f} s", "took": timeout})
                print(_progress(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _child(name: str, connection: Connection) -> None:
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # of one row in many, nobody reads the warnings
    os.dup2(1, 2)
    try:
        connection.send(row(name))
    except BaseException as error:
        connection.send({"name": name, "converts": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"})


def _progress(found: dict[str, Any]) -> str:
    said = "; ".join(faults(found)) or "right"
    return f"{found['name']:28} {found['took']:6.1f} s  {said[:220]}"


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with a row, but for what is expected; and what was expected, but is right."""
    wrong = _wrong(found)
    expected = {check: reason for (name, check), reason in EXPECTED.items() if name == found["name"]}
    gone = [f"{check} is right now: take it off the list" for check in expected if check not in wrong]
    return [f"{check}: {said}" for check, said in wrong.items() if check not in expected] + gone


def _wrong(found: dict[str, Any]) -> dict[str, str]:
    if found["converts"] is not True:
        return {"converts": found["converts"]}
    wrong = {}
    for key, limit in (("full32", FULL32), ("full64", FULL64), ("sorted", FULL32), ("exact", EXACT)):
        if isinstance(found[key], str) or not found[key] <= limit:
            wrong[key] = _number(found[key])
    for key, limit in zip(("left", "left_residual"), LEFT[found["kind"]], strict=True):
        if isinstance(found[key], str):
            wrong[key] = found[key]
        elif limit is not None and found[key] > limit and not (key == "left" and found["whole"]):
            wrong[key] = f"{found[key]:.2f} > {limit}"
    for key in CHECKS:
        if found[key] is not True and not str(found[key]).startswith("plain, too"):
            wrong[key] = found[key]
    return wrong


def _number(value: Any) -> str:
    return value if isinstance(value, str) else "0" if value == 0 else f"{value:.0e}"


# -- the table --------------------------------------------------------------------------------------------------------

HEAD = "| network | parameters | units | left | left, residual | full, f32 / f64 | masked − extracted | the rest |"


def table(rows: list[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    return "\n".join([HEAD, f"|{'---|' * 8}", *map(_line, rows)])


def _line(found: dict[str, Any]) -> str:
    if found["converts"] is not True:
        reason = EXPECTED.get((found["name"], "converts"))
        return f"| {found['name']} | {_count(found)} | {reason or found['converts']} ||||||"
    rest = [f"{key}: {_short(found[key])}" for key in CHECKS if found[key] is not True]
    cells = [
        found["name"], _count(found), str(found["units"]), _share(found["left"]), _share(found["left_residual"]),
        f"{_number(found['full32'])} / {_number(found['full64'])}", _number(found["exact"]), "; ".join(rest) or "ok",
    ]  # fmt: skip
    return f"| {' | '.join(_short(cell) for cell in cells)} |"


def _count(found: dict[str, Any]) -> str:
    return f"{found['parameters'] / 1e6:.2f} M" if "parameters" in found else ""


def _share(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"


def _short(text: Any) -> str:
    said = "the plain network, too" if str(text).startswith("plain, too") else str(text)
    return said.replace("|", "/")[:120]


def summary(rows: list[dict[str, Any]]) -> str:
    """How many there are and convert, and medians of what is left, by source and kind."""
    lines = []
    for source in ("transformers", "timm", "by hand"):
        ours = [r for r in rows if r.get("source") == source]
        lines.append(f"- {source}: {sum(r['converts'] is True for r in ours)} of {len(ours)} convert.")
    for kind, words in (("cnn", "convolutional networks"), ("transformer", "transformers")):
        ours = [r for r in rows if r.get("kind") == kind and r["converts"] is True]
        pairs = [[r[key] for r in ours if not isinstance(r[key], str)] for key in ("left", "left_residual")]
        if all(pairs):
            plain, residual = (f"{median(values):.3f}, at most {max(values):.3f}" for values in pairs)
            lines.append(f"- Left of {words} at a quarter width, the median: {plain}; with `residual=True` {residual}.")
    return "\n".join(lines)


def page(results: dict[str, Any], text: str) -> str:
    """The page with its generated part made again."""
    head, rest = text.split(BEGIN)
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    parts = [f"Of {versions}.", "", summary(results["rows"]), "", table(results["rows"])]
    if any(r["converts"] is not True for r in results["rows"]):
        parts += ["", "What stays whole, most often, with `residual=True`:", "", _reasons(results["rows"])]
    return f"{head}{BEGIN}\n" + "\n".join(parts) + f"\n{END}{rest.split(END)[1]}"


def _reasons(rows: list[dict[str, Any]]) -> str:
    counts = Counter(reason.split(" (")[0] for r in rows for reason in r.get("whole_residual", {}).values())
    return "\n".join(f"- {count} × {reason}" for reason, count in counts.most_common(8))


def main() -> None:
    """Run rows, print their table, and fail where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="globs of names, parted by commas")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    parser.add_argument("--write", action="store_true", help="keep the rows in docs/results, and make the page again")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds a row may take")
    options = parser.parse_args()
    from zoo_networks import NETWORKS

    names = [name for name in NETWORKS if any(fnmatch(name, glob) for glob in options.only.split(","))]
    if not names:
        sys.exit(f"zoo: --only matches none of {', '.join(NETWORKS)}")
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.is_file() else []
    took = {r["name"]: r["took"] for r in kept}
    rows = run_rows(sorted(names, key=lambda name: -took.get(name, 1e9)), options.processes, options.timeout)
    rows.sort(key=lambda r: names.index(r["name"]))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "timm")}
    results = {"versions": versions, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1), encoding="utf-8")
        PAGE.write_text(page(results, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(rows), "", summary(rows), "", sep="\n")
    wrong = {r["name"]: said for r in rows if (said := faults(r))}
    cnns = [r["left"] for r in rows if r.get("kind") == "cnn" and isinstance(r.get("left"), float)]
    if cnns and options.only == "*" and median(cnns) > MEDIAN:
        wrong["convolutional networks"] = [f"the median of what is left is {median(cnns):.2f} > {MEDIAN}"]
    for name, said in wrong.items():
        print(f"wrong: {name}: {'; '.join(said)}")
    print(f"zoo: {len(rows)} networks, {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
