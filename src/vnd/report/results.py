"""The result file of a run, `results.json`: what the report expects of it, and the rows it speaks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vnd.report.schema import CODES, SCHEMA, SEGMENTS, check, check_codes, check_lengths, check_segments, shown

RESULTS = "results.json"


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
        where = (
            f"run `vnd evaluate {path.parent}` first" if path.name == RESULTS else f"give a run folder or its {RESULTS}"
        )
        raise FileNotFoundError(f"report: {path} is missing; {where}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"report: {path} must be JSON in UTF-8: {str(error).splitlines()[0]}") from None
    try:
        task = contents.get("task") if isinstance(contents, dict) else None
        if task == "autoencoding":
            check(contents, CODES, "")
            check_codes(contents)
        elif task == "segmentation":
            check(contents, SEGMENTS, "")
            check_segments(contents)
        else:
            check(contents, SCHEMA, "")
            check_lengths(contents)
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
        raise ValueError(f"chosen.label must be the label of one of the rows; got {shown(chosen['label'])}")
    return next((row for row in rows if row["parameters"] == chosen.get("parameters")), rows[0])
