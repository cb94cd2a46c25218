"""What a result file must hold: the types of its parts, and the refusal of what is not of them, by its key."""

from __future__ import annotations

import json
from typing import Any

FORMAT = 1
SLACK = 1e-6  # of a share, which was a float32 once

TEXT, NUMBER, SHARE = "text", "a finite number", "a number in 0 … 1"
COUNT, SIZE = "a whole number of at least 0", "a whole number of at least 1"
NATURAL, POSITIVE = "a finite number of at least 0", "a finite number above 0"
BIN, PART, PEARSON = "a number in 0 … 1, or null", "a number in (0, 1]", "a number in -1 … 1, or null"
MAYBE = "a finite number, or null"
OWNER = "text or a whole number"
IMAGE = "rows of whole numbers in 0 … 255, H × W or H × W × 3"

KINDS = ("uniform", "learned", "sampled")
SPLITS = ("test", "validation")
READINGS = ("mc", "mean", "mc_mask", "temperature_scaled")

# A key with "?" may be missing, null or empty. {"*": …} has keys of its own, […] holds one or more, (…) the choices.
EXAMPLE = {"image": IMAGE, "prediction": TEXT, "confidence": SHARE, "label?": TEXT}
ROW = {
    **{"kind": KINDS, "label": TEXT, "parameters": SIZE, "accuracy": SHARE, "nll": NUMBER},
    **{"ece": SHARE, "macs?": COUNT, "bytes?": COUNT, "latency_ms?": NUMBER, "brier?": NUMBER, "auroc?": SHARE},
    **{"aupr?": SHARE, "base_rate?": SHARE, "shape?": {"*": COUNT}},
}
TIDY = {
    **{"inference": READINGS, "repeat": COUNT, "kind": KINDS, "label": TEXT, "bn_images?": COUNT, "fraction?": PART},
    **{"parameters": POSITIVE, "accuracy": SHARE, "nll": NUMBER, "ece": SHARE},
    **dict.fromkeys(("macs?", "bytes?", "latency_ms?", "test_seconds?", "usage_std?"), NATURAL),
    **dict.fromkeys(("brier?", "aurc?"), NATURAL),
    **dict.fromkeys(("classwise_ece?", "adaptive_ece?", "batch_ece?", "auroc?", "aupr?", "fpr95?"), SHARE),
    **{"base_rate?": SHARE, "dense_parameters?": POSITIVE, "temperature?": POSITIVE},
}
SERIES = {
    **{"run": TEXT, "recipe?": TEXT, "method": TEXT, "network": TEXT, "data": TEXT, "seed?": COUNT},
    "settings?": TEXT,
}
SELECTIVE = {
    **{"label": TEXT, "threshold?": NUMBER, "coverage": SHARE, "risk?": SHARE, "aurc?": NATURAL},
    **{"curve?": {"coverage": [SHARE], "risk": [SHARE]}},
}
CASCADE = {
    "levels": [TEXT],
    "curve": [{"threshold?": NUMBER, "accuracy": SHARE, "macs": POSITIVE, "share": [SHARE]}],
    "single": [{"label": TEXT, "accuracy": SHARE, "macs": POSITIVE}],
}
SCHEMA: dict[str, Any] = {
    "format": (FORMAT,),
    "title": TEXT,
    "data": {
        "name": TEXT,
        "train?": COUNT,
        "validation?": COUNT,
        "test?": COUNT,
        "classes?": [TEXT],
        "image?": [COUNT],
    },
    "rows": [ROW],
    "command?": TEXT,
    "method?": TEXT,
    "machine?": TEXT,
    "ood?": TEXT,
    "split?": SPLITS,
    "samples?": COUNT,
    "seconds?": {"*": NUMBER},
    "chosen?": {"label": TEXT, "parameters?": SIZE, "reason?": TEXT, "folder?": TEXT},
    "reliability?": [{"label": TEXT, "count": [COUNT], "confidence": [BIN], "accuracy": [BIN]}],
    "survival?": {"*": [SHARE]},
    "examples?": {"most_certain?": [EXAMPLE], "least_certain?": [EXAMPLE], "ood?": [EXAMPLE]},
    "curves?": [{"step": COUNT, "loss?": NUMBER, "nll?": NUMBER, "kl?": NUMBER}],
    "series?": SERIES,
    "inference?": [READINGS],
    "tidy?": [TIDY],
    "correlation?": {"labels": [TEXT], "inside": [[PEARSON]], "outside?": [[PEARSON]]},
    "selective?": {"risk": SHARE, "rows": [SELECTIVE]},
    "cascade?": CASCADE,
}
CODE_ROW = {
    **{"length_rule": ("fixed", "posterior", "target"), "length": POSITIVE, "label?": TEXT, "fraction?": PART},
    **{"mse": NATURAL, "summed": NATURAL, "rate?": NUMBER, "distortion?": NUMBER, "negative_elbo?": NUMBER},
    **dict.fromkeys(("frechet?", "inception_score?", "inception_score_std?", "diversity?", "target?"), NATURAL),
    **{f"length_{name}?": NATURAL for name in ("min", "low", "median", "high", "max")},
    "reached?": SHARE,
}
CODES: dict[str, Any] = {  # of an auto-encoder
    **{key: SCHEMA[key] for key in ("format", "title", "data", "command?", "method?", "machine?", "split?", "series?")},
    "task": ("autoencoding",),
    "kind": ("ordered", "single"),
    "latent_dim": SIZE,
    "likelihood_std": POSITIVE,
    "rows": [CODE_ROW],
    "tidy": [CODE_ROW],
    "seconds?": {"*": NUMBER},
    "features?": {
        **dict.fromkeys(("name", "sha256", "distance_name", "score_name"), TEXT),
        **{"num_generated": SIZE, "real": SIZE, "real_diversity": NATURAL},
    },
    "lengths?": {"*": [COUNT]},
    "complexity?": {
        **{"measure": TEXT, "images": SIZE, "shown": {"*": [COUNT]}},
        "correlation": {"*": {"spearman": NUMBER, "pearson": NUMBER}},
    },
    "notes?": [TEXT],
    "curves?": [{"step": COUNT, "loss?": NUMBER, "mse?": NUMBER, "rate?": NUMBER}],
}
SEGMENT_ROW = {
    **{"label": TEXT, "kind?": KINDS, "fraction?": PART, "parameters?": SIZE, "macs?": COUNT, "seconds?": NATURAL},
    **{
        "ged": {"*": NUMBER},
        "ged_unbiased?": {"*": MAYBE},
        "ged_by_group?": {"*": NUMBER},
        "ged_interval?": {"*": [NUMBER]},
        "expected_ged?": {"*": NUMBER},
        "per_image": {"*": [NUMBER]},
    },
    **dict.fromkeys(("matched_iou?", "diversity?", "dice?", "calibration_error?"), SHARE),
    **{"entropy?": NATURAL, "entropy_marked?": NATURAL},
}
SEGMENTS: dict[str, Any] = {  # of a segmenter
    **{key: SCHEMA[key] for key in ("format", "title", "data", "command?", "method?", "machine?", "split?", "series?")},
    "task": ("segmentation",),
    "graders": SIZE,
    "samples": [SIZE],
    "groups?": [OWNER],
    "rows": [SEGMENT_ROW],
    "reliability?": {"*": {"count": [COUNT], "confidence": [BIN], "frequency": [BIN]}},
    "graders_own?": {"*": MAYBE},
    **{key: SCHEMA[key] for key in ("seconds?", "curves?")},
    "notes?": [TEXT],
}


def check(value: Any, wanted: Any, key: str) -> None:
    """Refuse a value that is not what the schema says, by its key."""
    if isinstance(wanted, dict):
        _dict(value, wanted, key)
    elif isinstance(wanted, list):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{key} must be a list that is not empty; got {shown(value)}")
        for index, item in enumerate(value):
            check(item, wanted[0], f"{key}.{index}")
    elif isinstance(wanted, tuple):
        if value not in wanted or isinstance(value, bool):
            raise ValueError(f"{key} must be {' or '.join(map(repr, wanted))}; got {shown(value)}")
    elif not _is(value, wanted):
        raise ValueError(f"{key} must be {wanted}; got {shown(value)}")


def check_lengths(contents: dict[str, Any]) -> None:
    """Refuse lists that belong together and do not have one length."""
    for index, width in enumerate(contents.get("reliability") or []):
        _same(f"reliability.{index}", width, ("count", "confidence", "accuracy"))
    for index, row in enumerate((contents.get("selective") or {}).get("rows", [])):
        if row.get("curve"):
            _same(f"selective.rows.{index}.curve", row["curve"], ("coverage", "risk"))
    cascade, correlation = contents.get("cascade") or {}, contents.get("correlation") or {}
    for index, point in enumerate(cascade.get("curve", [])):
        if len(point["share"]) != len(cascade["levels"]):
            raise ValueError(f"cascade.curve.{index}.share must have one number a level, {len(cascade['levels'])}")
    for key in ("inside", "outside"):
        size = len(correlation.get("labels", []))
        if correlation.get(key) and [len(line) for line in correlation[key]] != [size] * size:
            raise ValueError(f"correlation.{key} must have one row and one column a label, {size} × {size}")


def check_codes(contents: dict[str, Any]) -> None:
    """Refuse what an auto-encoder's results say of images where it does not fit together."""
    for name, counts in (contents.get("lengths") or {}).items():
        if len(counts) != contents["latent_dim"] + 1 or not sum(counts):
            raise ValueError(
                f"lengths.{name} must count images at each length from 0 to latent_dim = {contents['latent_dim']}"
            )
    found = contents.get("complexity") or {}
    if found and not {"png", *found["correlation"]} <= set(found["shown"]):
        raise ValueError("complexity.shown must have png and one list a correlation")
    if found:
        _same("complexity.shown", found["shown"], tuple(found["shown"]))


def check_segments(contents: dict[str, Any]) -> None:
    """Refuse what a segmenter's results say of sizes, numbers of samples and images where it does not fit together."""
    counts, labels = {str(count) for count in contents["samples"]}, [row["label"] for row in contents["rows"]]
    if len(set(labels)) < len(labels):
        raise ValueError(f"rows must have one label each; got {shown(labels)}")
    images = len(next(iter(contents["rows"][0]["per_image"].values()), []))
    for index, row in enumerate(contents["rows"]):
        for key in ("ged", "ged_unbiased", "ged_by_group", "ged_interval", "expected_ged", "per_image"):
            if row.get(key) and set(row[key]) != counts:
                raise ValueError(
                    f"rows.{index}.{key} must have the numbers of samples as keys; got {shown([*row[key]])}"
                )
        if any(len(values) != images for values in row["per_image"].values()):
            raise ValueError(f"rows.{index}.per_image must have one number an image everywhere, {images} as the first")
        for count, ends in (row.get("ged_interval") or {}).items():
            if len(ends) != 2 or ends[0] > ends[1]:
                raise ValueError(f"rows.{index}.ged_interval.{count} must be two ends that rise; got {shown(ends)}")
    if contents.get("groups") and len(contents["groups"]) != images:
        raise ValueError(f"groups must be one an image, {images}; got {len(contents['groups'])}")
    for label, bins in (contents.get("reliability") or {}).items():
        if label not in labels:
            raise ValueError(f"reliability must have labels of rows as keys; got {shown(label)}")
        _same(f"reliability.{label}", bins, ("count", "confidence", "frequency"))


def _same(place: str, lists: dict[str, Any], names: tuple[str, ...]) -> None:
    if len({len(lists[name]) for name in names}) > 1:
        raise ValueError(f"{place}: {', '.join(names[:-1])} and {names[-1]} must have one length")


def _dict(value: Any, wanted: dict[str, Any], key: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{key or 'the file'} must be an object with keys; got {shown(value)}")
    if "*" in wanted:
        wanted = dict.fromkeys(value, wanted["*"])
    for name, inner in wanted.items():
        plain = name if name in value else name.removesuffix("?")
        place = f"{key}.{plain}" if key else plain
        if name != plain and value.get(plain) in (None, [], {}):
            continue
        if plain not in value:
            raise ValueError(f"{place} is missing")
        check(value[plain], inner, place)


def _is(value: Any, wanted: str) -> bool:
    if wanted == TEXT:
        return isinstance(value, str)
    if wanted == IMAGE:
        return _is_image(value)
    if wanted == OWNER:
        return isinstance(value, str | int) and not isinstance(value, bool)
    if value is None:
        return wanted in (BIN, PEARSON, MAYBE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:  # NaN fails as well
        return False
    whole = value == int(value)
    known = {
        NUMBER: True, MAYBE: True, POSITIVE: value > 0, NATURAL: value >= 0, COUNT: whole and value >= 0,
        SIZE: whole and value >= 1, PEARSON: abs(value) <= 1 + SLACK, PART: 0 < value <= 1 + SLACK,
    }  # fmt: skip
    return known.get(wanted, -SLACK <= value <= 1 + SLACK)


def _is_image(value: Any) -> bool:
    def sizes(item: Any) -> tuple[int, ...] | None:
        if isinstance(item, list) and item:
            inner = {sizes(part) for part in item}
            only = inner.pop()
            return None if inner or only is None else (len(item), *only)
        return () if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 255 else None

    size = sizes(value)
    return size is not None and (len(size) == 2 or (len(size) == 3 and size[2] == 3))


def shown(value: Any) -> str:
    """A value in an error message, not too long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
