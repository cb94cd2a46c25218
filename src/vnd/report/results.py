"""The result file of a run, `results.json`: what the report expects of it, and the rows it speaks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FORMAT = 1
RESULTS = "results.json"
SLACK = 1e-6  # of a share, which was a float32 once

TEXT, NUMBER, SHARE = "text", "a finite number", "a number in 0 … 1"
COUNT, SIZE = "a whole number of at least 0", "a whole number of at least 1"
BIN = "a number in 0 … 1, or null"
IMAGE = "rows of whole numbers in 0 … 255, H × W or H × W × 3"

# A key with "?" may be missing, null or empty. {"*": …} has keys of its own, […] holds one or more, (…) the choices.
EXAMPLE = {"image": IMAGE, "prediction": TEXT, "confidence": SHARE, "label?": TEXT}
ROW = {
    **{"kind": ("uniform", "learned"), "label": TEXT, "parameters": SIZE, "accuracy": SHARE, "nll": NUMBER},
    **{"ece": SHARE, "macs?": COUNT, "bytes?": COUNT, "latency_ms?": NUMBER, "brier?": NUMBER, "auroc?": SHARE},
    **{"aupr?": SHARE, "base_rate?": SHARE, "shape?": {"*": COUNT}},
}
SCHEMA: dict[str, Any] = {
    "format": (FORMAT,),
    "title": TEXT,
    "data": {"name": TEXT, "train?": COUNT, "validation?": COUNT, "test?": COUNT, "classes?": [TEXT]},
    "rows": [ROW],
    "command?": TEXT,
    "method?": TEXT,
    "machine?": TEXT,
    "out_of_domain?": TEXT,
    "split?": TEXT,
    "samples?": COUNT,
    "seconds?": {"*": NUMBER},
    "chosen?": {"label": TEXT, "parameters?": SIZE, "reason?": TEXT, "folder?": TEXT},
    "reliability?": [{"label": TEXT, "count": [COUNT], "confidence": [BIN], "accuracy": [BIN]}],
    "survival?": {"*": [SHARE]},
    "examples?": {"most_certain?": [EXAMPLE], "least_certain?": [EXAMPLE], "out_of_domain?": [EXAMPLE]},
    "curves?": [{"step": COUNT, "loss?": NUMBER, "nll?": NUMBER, "kl?": NUMBER}],
}


def read(results: Path) -> dict[str, Any]:
    """The contents of a result file, once every part that the report uses is known to be what it should be.

    Args:
        results: A run folder, or its `results.json`.
    """
    path = Path(results) / RESULTS if Path(results).is_dir() else Path(results)
    try:
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(contents, ensure_ascii=False).encode()  # half a character passes as JSON, and fails in a page
    except FileNotFoundError:
        raise FileNotFoundError(f"report: {path} does not exist; give a run folder or its {RESULTS}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report: {path} must be JSON in UTF-8: {str(error).splitlines()[0]}") from None
    try:
        _check(contents, SCHEMA, "")
        for index, width in enumerate(contents.get("reliability") or []):
            if len({len(width[key]) for key in ("count", "confidence", "accuracy")}) > 1:
                raise ValueError(f"reliability.{index}: count, confidence and accuracy must have one length")
        chosen_row(contents)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report: {path}: {' '.join(str(error).split())}") from None
    return contents


def full_row(results: dict[str, Any]) -> dict[str, Any]:
    """The row of the largest network; of equals the first."""
    row: dict[str, Any] = max(results["rows"], key=lambda row: row["parameters"])
    return row


def smallest_row(results: dict[str, Any]) -> dict[str, Any]:
    """The row of the smallest network; of equals the most accurate."""
    row: dict[str, Any] = min(results["rows"], key=lambda row: (row["parameters"], -row["accuracy"]))
    return row


def chosen_row(results: dict[str, Any]) -> dict[str, Any] | None:
    """The row that `chosen` means, by label and, where several have it, by number of parameters; None if none is."""
    chosen = results.get("chosen")
    if not chosen:
        return None
    rows: list[dict[str, Any]] = [row for row in results["rows"] if row["label"] == chosen["label"]]
    if not rows:
        raise ValueError(f"chosen.label must be the label of one of the rows; got {_shown(chosen['label'])}")
    return next((row for row in rows if row["parameters"] == chosen.get("parameters")), rows[0])


def _check(value: Any, wanted: Any, key: str) -> None:
    """Refuse a value that is not what the schema says, by its key."""
    if isinstance(wanted, dict):
        _check_dict(value, wanted, key)
    elif isinstance(wanted, list):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{key} must be a list that is not empty; got {_shown(value)}")
        for index, item in enumerate(value):
            _check(item, wanted[0], f"{key}.{index}")
    elif isinstance(wanted, tuple):
        if value not in wanted or isinstance(value, bool):
            raise ValueError(f"{key} must be {' or '.join(map(repr, wanted))}; got {_shown(value)}")
    elif not _is(value, wanted):
        raise ValueError(f"{key} must be {wanted}; got {_shown(value)}")


def _check_dict(value: Any, wanted: dict[str, Any], key: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{key or 'the file'} must be an object with keys; got {_shown(value)}")
    if "*" in wanted:
        wanted = dict.fromkeys(value, wanted["*"])
    for name, inner in wanted.items():
        plain = name if name in value else name.removesuffix("?")
        place = f"{key}.{plain}" if key else plain
        if name != plain and value.get(plain) in (None, [], {}):
            continue
        if plain not in value:
            raise ValueError(f"{place} is missing")
        _check(value[plain], inner, place)


def _is(value: Any, wanted: str) -> bool:
    if wanted == TEXT:
        return isinstance(value, str)
    if wanted == IMAGE:
        return _is_image(value)
    if wanted == BIN and value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:  # NaN fails as well
        return False
    whole = value == int(value)
    return {NUMBER: True, COUNT: whole and value >= 0, SIZE: whole and value >= 1}.get(
        wanted, -SLACK <= value <= 1 + SLACK
    )


def _is_image(value: Any) -> bool:
    def sizes(item: Any) -> tuple[int, ...] | None:
        if isinstance(item, list) and item:
            inner = {sizes(part) for part in item}
            only = inner.pop()
            return None if inner or only is None else (len(item), *only)
        return () if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 255 else None

    size = sizes(value)
    return size is not None and (len(size) == 2 or (len(size) == 3 and size[2] == 3))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
