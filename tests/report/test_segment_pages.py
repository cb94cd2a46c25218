"""Pages of segmenters: what is one entry, the numbers of table and figures, what is published, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_codes import fake_code
from fake_segments import COUNTS, GRADERS_APART, METHODS, fake_segment, groups_of
from matplotlib.axes import Axes
from task_pages import check_refused, classifier, coarsen, compared, page_of, put, runs_of

from vnd.metrics import bootstrap_interval, confidence_interval
from vnd.report import comparison, page, paired, scores, segmenting, segments, tasks
from vnd.report.entries import Entry, group
from vnd.report.runs import open_results

PUBLISHED = "P-UNet as published, another split"


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    coarsen(monkeypatch)


def entries_of(*results: dict[str, Any]) -> list[Entry]:
    return group(runs_of(*results))


def several(**options: Any) -> list[dict[str, Any]]:
    return [fake_segment(method, **options) for method in METHODS]


def lines_of(axis: Axes) -> dict[str, float]:
    """The lines across a panel, by label: where each is."""
    return {str(line.get_label()): float(line.get_ydata()[0]) for line in axis.lines if line.get_label()[0] != "_"}


def means_of(axis: Axes) -> list[float]:
    """The black lines in boxes."""
    return [float(line.get_ydata()[0]) for line in axis.lines if line.get_color() == "black"]


# Entries


def test_methods_stand_in_the_order_of_names_whatever_their_network() -> None:
    entries = entries_of(*reversed(several()))
    assert [own.name for own in entries] == ["VND-PUNet", "BN³-UNet", "P-UNet", "UNet ensemble", "dropout UNet"]
    (block,) = tasks.compare(segmenting.TASK, runs_of(*several())).blocks
    assert {run.network for run in block.runs} == {"unet", "probabilistic_unet"}
    assert [point.label for point in entries[0].points] == ["2 of 6", "6 of 6"]
    assert entries[1].full.label == "100 %"


def test_sizes_stand_from_the_smallest_whatever_the_file_says() -> None:
    results = fake_segment("bn3_unet")
    results["rows"].reverse()
    (own,) = entries_of(results)
    fractions = [point.fraction for point in own.points]
    assert fractions == sorted(METHODS["bn3_unet"][2])


def test_seeds_are_averaged_with_an_interval_and_their_images_are_in_one_box() -> None:
    runs = [fake_segment("punet", seed) for seed in range(3)]
    (own,) = entries_of(*runs)
    wanted = confidence_interval([one["rows"][0]["ged"]["16"] for one in runs])
    assert (own.full.measures["ged_16"], own.full.runs) == (wanted, 3)
    assert own.full.images[16] == tuple(x for one in runs for x in one["rows"][0]["per_image"]["16"])
    assert "± is half a 95 % interval" in scores.notes([own])[0]


def test_runs_of_other_settings_or_of_one_seed_are_apart() -> None:
    assert len(entries_of(fake_segment(), fake_segment(seed=1, settings="other"))) == 2
    assert len(entries_of(fake_segment(run="a"), fake_segment(run="b"))) == 2
    assert len(entries_of(fake_segment(), fake_segment(seed=1))) == 1


def test_runs_on_other_images_are_said_not_to_compare() -> None:
    assert "do not compare" not in scores.notes(entries_of(*several()))[0]
    mixed = entries_of(fake_segment(images=20), fake_segment("punet", images=30))
    assert "on 20 and 30 images: these do not compare" in scores.notes(mixed)[0]


def test_images_of_other_sizes_are_blocks_of_their_own(tmp_path: Path) -> None:
    """The size is in the result file, or in what an older run wrote at its begin."""
    small, large, *older = [fake_segment(run=run) for run in "abcd"]
    small["data"]["image"], large["data"]["image"] = [1, 32, 32], [1, 128, 128]
    places = put(tmp_path, small, large, *older)
    (places[2] / "data.json").write_text(json.dumps({"image": [1, 32, 32]}))
    (tmp_path / "data.json").write_text(json.dumps({"image": [1, 128, 128]}))  # beside folders of evaluations
    runs = [open_results(place / "results.json") for place in places]
    blocks = tasks.compare(segmenting.TASK, runs).blocks
    assert [(block.key, len(block.runs)) for block in blocks] == [(("lidc", "32×32"), 2), (("lidc", "128×128"), 2)]
    assert segmenting.TASK.where([block.key for block in blocks]) == "on “lidc”"
    rows = [row for block in blocks for row in segmenting.TASK.rows(block.series)]
    assert {row["image"] for row in rows} == {"32×32", "128×128"}


@pytest.mark.parametrize(
    "words", ["", "[]", "null", "5", '{"image": 5}', '{"image": "128x128"}', '{"image": [32, 32]}']
)
def test_a_size_that_is_not_known_is_none(words: str, tmp_path: Path) -> None:
    (place,) = put(tmp_path, fake_segment())
    (place / "data.json").write_text(words)
    assert open_results(place / "results.json").image == ""


# The table


def test_the_tables_have_every_size_and_mark_the_best_of_each_column() -> None:
    results = several()
    rows = [row for one in results for row in one["rows"]]
    (first, lines), (second, more) = scores.tables(entries_of(*results))
    assert first == [
        "Method",
        "Size",
        "Parameters",
        "GED 1",
        "GED 4",
        "GED 8",
        "GED 16",
        "95 % interval",
        "By patient",
        "GED* 16",
    ]
    assert second == ["Method", "Size", "Matched IoU", "Diversity", "Dice", "Pixel ECE", "Entropy"]
    assert [line[0][0] for line in lines[len(rows) :]] == [PUBLISHED]
    assert [line[0][0] for line in more[len(rows) :]] == [scores.GRADERS]
    assert more[-1][second.index("Diversity")][0] == f"{GRADERS_APART:.3f}"
    for line, other, row in zip(lines, more, rows, strict=False):
        assert line[first.index("GED 4")][0] == f"{row['ged']['4']:.3f}"
        assert other[second.index("Matched IoU")][0] == f"{row['matched_iou']:.3f}"
    for head, own, name, best in (
        (first, lines, "GED 16", min), (second, more, "Matched IoU", max), (second, more, "Pixel ECE", min),
    ):  # fmt: skip
        column = [line[head.index(name)] for line in own[: len(rows)]]
        assert [text for text, marked in column if marked] == [best((text for text, _ in column), key=float)]
    assert not any(line[second.index("Diversity")][1] for line in more)  # neither more nor less is better


# Owners of images


def test_the_table_has_the_interval_over_owners_and_the_mean_by_owner() -> None:
    results = several()
    head, lines = scores.tables(entries_of(*results))[0]
    for line, row in zip(lines, (row for one in results for row in one["rows"]), strict=False):
        low, high = row["ged_interval"]["16"]
        assert line[head.index("95 % interval")] == (f"{low:.3f} … {high:.3f}", False)
        assert line[head.index("By patient")][0] == f"{row['ged_by_group']['16']:.3f}"
    note = scores.notes(entries_of(*results))[0]
    assert "2,000 resamples of the 9 patients" in note
    assert "so that the two who have 60 % of the images count no more" in note
    others = [
        fake_segment(data="synthetic_graders", owned=False),
        fake_segment("punet", data="synthetic_graders", owned=False),
    ]
    head, lines = scores.tables(entries_of(*others))[0]
    assert "By owner" not in head
    assert head.count("95 % interval") == 1
    assert "resamples of the images." in scores.notes(entries_of(*others))[0]


def test_members_that_come_again_have_no_unbiased_distance() -> None:
    head, lines = scores.tables(entries_of(*several()))[0]
    column = {line[0][0]: line[head.index("GED* 16")][0] for line in lines}
    assert column["UNet ensemble"] == "–"
    assert "there is none where samples come again" in scores.notes(entries_of(*several()))[0]
    assert "there is none" not in scores.notes(entries_of(fake_segment("punet")))[0]
    assert column["P-UNet"] != "–"


def test_intervals_of_several_trainings_are_of_their_mean() -> None:
    runs = [fake_segment("punet", seed) for seed in range(3)]
    (own,) = entries_of(*runs)
    each = np.mean([one["rows"][0]["per_image"]["16"] for one in runs], axis=0)
    assert own.full.each[16] == pytest.approx(each)
    (wanted,) = bootstrap_interval(torch.from_numpy(each)[:, None], groups_of(60))
    assert own.full.spans[16] == pytest.approx((wanted.low, wanted.high))
    runs[1]["groups"] = runs[1]["groups"][::-1]  # other images
    (own,) = entries_of(*runs)
    assert (own.groups, own.full.each, own.full.spans) == (None, {}, {})
    assert "95 % interval" not in scores.tables([own])[0][0]


def test_differences_are_paired_over_images_and_their_owners_resampled() -> None:
    results = {one["method"]: one for one in several(drawn=False)}
    entries = entries_of(*results.values())
    base = np.array(results["punet"]["rows"][0]["per_image"]["16"])
    head, lines = paired.lines(entries)
    assert head == ["Method", "Size", "Difference", "95 % interval"]
    assert [line[0][0] for line in lines].count("P-UNet") == 0
    assert paired.title(entries) == "GED 16, difference from P-UNet"
    rows = [row for name, one in results.items() if name != "punet" for row in one["rows"]]
    bold = 0
    for line, row in zip(lines, rows, strict=True):
        apart = torch.tensor(np.array(row["per_image"]["16"]) - base)
        (wanted,) = bootstrap_interval(apart[:, None], groups_of(60))
        assert line[2][0] == f"{wanted.mean:+.3f}".replace("-", "−")
        assert line[3][0] == f"{wanted.low:+.3f} … {wanted.high:+.3f}".replace("-", "−")
        assert line[2][1] == (wanted.high < 0)
        bold += line[2][1]
        (alone,) = bootstrap_interval(torch.tensor(row["per_image"]["16"])[:, None], groups_of(60))
        assert wanted.high - wanted.low < alone.high - alone.low  # the same images are hard for all
    assert 0 < bold < len(rows)  # or the test says little


def test_without_a_punet_the_first_is_the_reference_and_others_images_do_not_compare() -> None:
    entries = entries_of(fake_segment(), fake_segment("dropout_unet"), fake_segment("unet_ensemble", owned=False))
    assert paired.title(entries) == "GED 16, difference from VND-PUNet, 6 of 6"
    _, lines = paired.lines(entries)
    assert [(line[0][0], line[1][0]) for line in lines] == [
        ("VND-PUNet", "2 of 6"), ("UNet ensemble", "–"), ("dropout UNet", "–"),
    ]  # fmt: skip
    assert [line[2][0] == "–" for line in lines] == [False, True, False]
    assert paired.lines(entries[:1]) == ([], [])
    fewer = entries_of(fake_segment("punet", images=20), fake_segment("dropout_unet", images=30))
    assert paired.lines(fewer) == ([], [])


# Lengths that are drawn


def test_drawn_lengths_have_a_line_and_a_box_and_are_not_the_full_size(tmp_path: Path) -> None:
    results = [fake_segment(drawn=True), fake_segment("punet")]
    results[0]["rows"].reverse()
    own, other = entries_of(*results)
    assert [point.label for point in own.points] == ["2 of 6", "6 of 6", "drawn"]
    assert (own.full.label, own.points[-1].drawn, own.points[-1].fraction) == ("6 of 6", True, None)
    head, lines = scores.tables([own, other])[0]
    row = results[0]["rows"][0]
    assert [line[1][0] for line in lines[:4]] == ["2 of 6", "6 of 6", "drawn", "–"]
    assert lines[2][head.index("GED 4")][0] == f"{row['ged']['4']:.3f}"
    axis = segments.boxes([own, other]).axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2 of 6", "6 of 6", "drawn"]
    assert means_of(axis)[-1] == row["ged"]["1"]
    (axis,) = segments.over_samples([own, other]).axes
    assert "VND-PUNet, drawn" not in {line.get_label() for line in axis.lines}
    (axis,) = segments.diversity([own, other]).axes
    full = {line.get_label(): line for line in axis.lines}["VND-PUNet"]
    assert full.get_xdata()[0] == own.full.measures["diversity"].mean
    assert max(len(line.get_xdata()) for line in axis.lines) == 2  # joined: the two lengths
    left, _ = segments.calibration([own, other]).axes
    bins = results[0]["reliability"]["6 of 6"]["frequency"]
    assert list(left.lines[1].get_ydata()) == [x for x in bins if x is not None]
    (place,) = put(tmp_path, results[0])
    text = page.write(place, place).read_text(encoding="utf-8")
    assert "measured at 2 sizes" in text
    assert f"{row['ged']['16']:.3f} with lengths that are drawn" in text
    assert "<td>drawn</td>" in text


def test_a_run_alone_has_nothing_best() -> None:
    found = scores.tables(entries_of(fake_segment("bn3_unet")))
    assert not any(marked for _, lines in found for line in lines for _, marked in line)


@pytest.mark.parametrize("data", ["lidc", "synthetic_graders"])
def test_what_was_published_and_the_truth_stand_beside_only_where_they_belong(data: str) -> None:
    entries = entries_of(*several(data=data, truth=data == "synthetic_graders"))
    head, lines = scores.tables(entries)[0]
    named = {line[0][0]: [text for text, _ in line] for line in lines}
    assert (PUBLISHED in named) == (data == "lidc")
    assert (scores.TRUTH in named) == (data == "synthetic_graders")
    (captioned,) = (one for one in segmenting.shown(entries) if one.name == "boxes")
    assert ("another split" in captioned.note) == (data == "lidc")
    assert ("true distribution" in captioned.note) == (data == "synthetic_graders")
    if data == "lidc":
        assert [text for text in named[PUBLISHED][1:] if text != "–"] == ["≈ 0.29"]
        assert named[PUBLISHED][head.index("GED 16")] == "≈ 0.29"
    else:
        wanted = entries[0].runs[0].results["rows"][0]["expected_ged"]
        assert named[scores.TRUTH][head.index("GED 8")] == f"{wanted['8']:.3f}"


# Figures


def test_boxes_and_lines_are_at_the_numbers_of_the_file() -> None:
    results = {one["method"]: one for one in several()}
    axes = segments.boxes(entries_of(*results.values())).axes
    assert [axis.get_title("left") for axis in axes] == ["1 sample", "4 samples", "8 samples", "16 samples"]
    for axis, count in zip(axes, map(str, COUNTS), strict=True):
        boxed = [*results["vnd_punet"]["rows"], *results["bn3_unet"]["rows"]]
        assert means_of(axis) == [row["ged"][count] for row in boxed]
        assert [tick.get_text() for tick in axis.get_xticklabels()] == [row["label"] for row in boxed]
        for box, row in zip(axis.patches, boxed, strict=True):
            heights = box.get_path().vertices[:, 1]
            wanted = np.percentile(row["per_image"][count], (25, 75))
            assert (heights.min(), heights.max()) == pytest.approx(wanted)
        across = lines_of(axis)
        for name, method in (("P-UNet", "punet"), ("UNet ensemble", "unet_ensemble"), ("dropout UNet", "dropout_unet")):
            assert across[name] == results[method]["rows"][0]["ged"][count]
        assert across.get(PUBLISHED) == (0.29 if count == "16" else None)


def test_methods_of_one_size_have_boxes_where_there_are_no_others() -> None:
    entries = entries_of(fake_segment("punet", truth=True), fake_segment("dropout_unet"))
    axes = segments.boxes(entries).axes
    assert [len(axis.patches) for axis in axes] == [2] * 4
    assert lines_of(axes[1])["samples of the truth, expected"] == pytest.approx(0.18 + GRADERS_APART / 4)
    (alone,) = segments.boxes(entries[:1]).axes
    assert means_of(alone) == list(entries[0].runs[0].results["rows"][0]["ged"].values())
    assert [tick.get_text() for tick in alone.get_xticklabels()] == ["1", "4", "8", "16"]


def test_a_wide_interval_reaches_past_the_figure_that_its_means_fill() -> None:
    first, again = fake_segment("punet"), fake_segment("punet", seed=1)
    for row in again["rows"]:
        row["ged"] = {count: 2 * value for count, value in row["ged"].items()}
    (own,) = entries_of(first, again)
    (axis,) = segments.over_samples([own]).axes
    measured = own.full.measures["ged_1"]
    assert axis.get_ylim()[0] == 0
    assert measured.mean < axis.get_ylim()[1] < 1.2 * measured.mean < measured.high
    ends = [bar.get_paths()[0].vertices[:, 1].tolist() for bar in axis.collections]
    assert ends == [[x.low, x.high] for x in (own.full.measures[f"ged_{count}"] for count in COUNTS)]
    notes = {one.name: one.note for one in segmenting.shown([own, *entries_of(fake_segment())])}
    assert "Bars: 95 %" in notes["samples"]
    assert "Bars: 95 %" not in {one.name: one.note for one in segmenting.shown(entries_of(*several()))}["samples"]


def test_other_figures_are_drawn_at_the_numbers_of_the_file() -> None:
    results = {one["method"]: one for one in several(truth=True)}
    entries = entries_of(*results.values())
    (axis,) = segments.over_samples(entries).axes
    drawn = {line.get_label(): line for line in axis.lines}
    assert list(drawn["VND-PUNet, 2 of 6"].get_ydata()) == list(results["vnd_punet"]["rows"][0]["ged"].values())
    assert list(drawn["VND-PUNet, 6 of 6"].get_ydata()) == list(results["vnd_punet"]["rows"][1]["ged"].values())
    assert list(drawn["P-UNet"].get_xdata()) == list(COUNTS)
    (axis,) = segments.diversity(entries).axes
    drawn = {line.get_label(): line for line in axis.lines}
    row = results["dropout_unet"]["rows"][0]
    assert (drawn["dropout UNet"].get_xdata()[0], drawn["dropout UNet"].get_ydata()[0]) == (
        row["diversity"],
        row["matched_iou"],
    )
    assert drawn["two different graders"].get_xdata()[0] == results["punet"]["graders_own"]["diversity"]
    left, right = segments.calibration(entries).axes
    bins = results["bn3_unet"]["reliability"]["100 %"]
    drawn = {line.get_label(): line for line in left.lines}
    assert list(drawn["BN³-UNet"].get_xdata()) == [x for x in bins["confidence"] if x is not None]  # no empty bin
    assert list(drawn["BN³-UNet"].get_ydata()) == [x for x in bins["frequency"] if x is not None]
    assert list(right.lines[1].get_ydata()) == [x for x in bins["count"] if x]
    left, _ = segments.calibration(entries[1:2]).axes
    assert [line.get_label() for line in left.lines[1:]] == [row["label"] for row in results["bn3_unet"]["rows"]]


# Pages


@pytest.mark.parametrize("method", ["vnd_punet", "dropout_unet"])
def test_the_page_of_a_run_has_its_numbers_and_needs_nothing_else(method: str, tmp_path: Path) -> None:
    results = fake_segment(method)
    text, files = page_of(tmp_path, results)
    for row in results["rows"]:
        for count in map(str, COUNTS):
            assert f"<td>{row['ged'][count]:.3f}</td>" in text
    assert "4 graders" in text
    assert "<dd>1, 4, 8, 16</dd>" in text
    more = {"samples", "diversity"} if method == "vnd_punet" else set()
    assert files == {"boxes", "calibration", "training"} | more


def test_a_page_needs_no_more_than_the_schema_asks_for(tmp_path: Path) -> None:
    results = fake_segment("punet", counts=(1,))
    for row in results["rows"]:
        row |= {"diversity": None, "matched_iou": None, "expected_ged": None}
    for key in ("reliability", "graders_own", "curves", "notes", "seconds", "machine"):
        results[key] = None
    (place,) = put(tmp_path, results)
    text = page.write(place, place).read_text(encoding="utf-8")
    assert "Diversity</th>" not in text
    assert [path.stem for path in (place / "figures").iterdir()] == ["boxes"]
    (head, _), (_, more) = scores.tables(entries_of(results))
    assert "GED* 1" not in head  # which is not defined
    assert [line[0][0] for line in more] == ["P-UNet"]  # its Dice, and nothing of the graders


def test_many_runs_are_compared_kept_and_written_as_markdown(tmp_path: Path) -> None:
    own = several()[:3]
    other = [fake_segment("punet", seed, data="synthetic_graders", truth=True) for seed in range(2)]
    found = compared(tmp_path, *own, *other)
    rows = found.rows
    assert found.series == {("lidc",): 3, ("synthetic_graders",): 1}
    assert len(rows) == 2 + 5 + 1 + 1
    first = own[0]["rows"][0]
    assert [float(rows[0][f"ged_16 groups {end}"]) for end in ("low", "high")] == first["ged_interval"]["16"]
    assert float(rows[0]["ged_by_group_16"]) == first["ged_by_group"]["16"]
    apart = first["ged"]["16"] - own[2]["rows"][0]["ged"]["16"]
    assert (rows[0]["ged_16 difference from"], rows[-2]["ged_16 difference"]) == ("P-UNet", "")
    assert float(rows[0]["ged_16 difference"]) == pytest.approx(apart)
    assert float(rows[0]["ged_16 difference groups low"]) < apart < float(rows[0]["ged_16 difference groups high"])
    assert found.page.count("GED 16, difference from P-UNet</h2>") == 1
    assert (rows[0]["size"], float(rows[0]["ged_16"])) == ("2 of 6", first["ged"]["16"])
    assert [rows[at]["expected_ged_4"] for at in (0, -1)] == ["", str(other[0]["rows"][0]["expected_ged"]["4"])]
    assert len(found.said["figures"]) == 4 + 2
    assert "| VND-PUNet | 2 of 6 |" in found.markdown
    assert found.markdown.count("another split | – |") == 1
    assert found.markdown.count("GED 16, difference from P-UNet. Of each image") == 1
    assert "| Method | Size | Difference | 95 % interval |" in found.markdown


OTHERS = {"auto-encoders": fake_code, "classifiers": classifier}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_mixture_with_others_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    places = put(tmp_path, fake_segment(), OTHERS[kind]())
    pattern = rf"^report: (segmenters and {kind}|{kind} and segmenters) have no measure in common; got .*$"
    with pytest.raises(ValueError, match=pattern):
        comparison.read(places)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no distances": (lambda r: r["rows"][0].pop("ged"), "rows.0.ged is missing"),
    "a number too few": (lambda r: r["rows"][1]["ged"].pop("8"), "rows.1.ged must have the numbers of samples"),
    "an image too few": (lambda r: r["rows"][1]["per_image"]["8"].pop(), "rows.1.per_image must have one number an"),
    "not a number": (lambda r: r["rows"][0]["ged"].update({"4": float("nan")}), "rows.0.ged.4 must be a finite"),
    "an overlap above 1": (lambda r: r["rows"][0].update(matched_iou=2), "rows.0.matched_iou must be a number in 0"),
    "no graders": (lambda r: r.update(graders=0), "graders must be a whole number of at least 1"),
    "bins of another size": (lambda r: r["reliability"].update(x=r["reliability"]["6 of 6"]), "reliability must have"),
    "bins of two lengths": (lambda r: r["reliability"]["6 of 6"]["count"].pop(), "reliability.6 of 6: count, "),
    "one label twice": (lambda r: r["rows"][0].update(label="6 of 6"), "rows must have one label each"),
    "an owner too few": (lambda r: r["groups"].pop(), "groups must be one an image, 60; got 59"),
    "an owner that is none": (lambda r: r["groups"].insert(0, 0.5), "groups.0 must be text or a whole number; got 0.5"),
    "ends that fall": (lambda r: r["rows"][1]["ged_interval"]["8"].reverse(), "rows.1.ged_interval.8 must be two ends"),
    "groups of one number": (lambda r: r["rows"][0]["ged_by_group"].pop("8"), "rows.0.ged_by_group must have the numb"),
    "another kind": (lambda r: r["rows"][0].update(kind="guessed"), "rows.0.kind must be 'uniform' or 'learned'"),
    "sides in words": (lambda r: r["data"].update(image="128×128"), "data.image must be a list"),
    "no row": (lambda r: r.update(rows=[]), "rows must be a list that is not empty"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_by_its_key(fault: str, tmp_path: Path) -> None:
    check_refused(tmp_path, fake_segment(), *BROKEN[fault])
