"""Masks: the numbers of tables and figures, groups of images, what is published, lengths that are drawn."""

from typing import Any

import numpy as np
import pytest
import torch
from fake_segments import COUNTS, GRADERS_APART, METHODS, fake_segment, groups_of
from matplotlib.axes import Axes
from pages import block, made, table_of

from vnd.metrics import bootstrap_interval, confidence_interval
from vnd.report import html, masks
from vnd.report.html import Options
from vnd.report.series import Block, blocks_of

PUBLISHED, PAGE = "P-UNet as published, another split", Options("page")


def several(**options: Any) -> list[dict[str, Any]]:
    return [fake_segment(method, **options) for method in METHODS]


def tables(found: Block) -> dict[str, Any]:
    return {part.key: part for part in masks.tables(found, PAGE) if part.content}


def means_of(axis: Axes) -> list[float]:
    """The black lines in boxes."""
    return [float(line.get_ydata()[0]) for line in axis.lines if line.get_color() == "black"]


def test_methods_of_all_networks_are_one_block_in_their_order() -> None:
    found = block(*reversed(several()))
    assert [own.name for own in found.series] == ["VND-PUNet", "BN³-UNet", "P-UNet", "UNet ensemble", "dropout UNet"]
    assert {run.network for run in found.runs} == {"unet", "probabilistic_unet"}
    assert [point.label for point in found.series[0].points] == ["2 of 6", "6 of 6"]
    assert [point.fraction for point in found.series[1].points] == sorted(METHODS["bn3_unet"][2])
    other = fake_segment("punet")
    other["data"]["image"] = [1, 64, 64]
    assert [one.key for one in blocks_of(made(fake_segment(), other))] == [("lidc",), ("lidc", "64×64")]


def test_seeds_are_averaged_with_an_interval_and_their_images_are_in_one_box() -> None:
    runs = [fake_segment("punet", seed) for seed in range(3)]
    found = block(*runs)
    point = found.series[0].full
    assert masks.ged(point, 16) == confidence_interval([one["rows"][0]["ged"]["16"] for one in runs])
    assert masks.images(point, 16) == [x for one in runs for x in one["rows"][0]["per_image"]["16"]]
    assert "± is half a 95 % interval" in tables(found)["distances"].note
    mixed = tables(block(fake_segment(images=20), fake_segment("punet", images=30)))
    assert "on 20 and 30 images: these do not compare" in mixed["distances"].note


def test_the_tables_have_every_size_and_mark_the_best_of_each_column() -> None:
    results = several()
    rows, found = [row for one in results for row in one["rows"]], tables(block(*results))
    head, lines = table_of(found["distances"])
    assert head == [
        "Method",
        "Size",
        "Parameters",
        *(f"GED {n}" for n in COUNTS),
        "95 % interval",
        "By patient",
        "GED* 16",
    ]
    other, more = table_of(found["others"])
    assert other == ["Method", "Size", "Matched IoU", "Diversity", "Dice", "Pixel ECE", "Entropy"]
    assert [line[0] for line in lines[len(rows) :]] == [PUBLISHED]
    assert [line[0] for line in more[len(rows) :]] == [masks.GRADERS]
    assert more[-1][other.index("Diversity")] == f"{GRADERS_APART:.3f}"
    for line, beside, row in zip(lines, more, rows, strict=False):
        assert line[head.index("GED 4")] == f"{row['ged']['4']:.3f}"
        assert beside[other.index("Matched IoU")] == f"{row['matched_iou']:.3f}"
        low, high = row["ged_interval"]["16"]
        assert line[head.index("95 % interval")] == f"{low:.3f} … {high:.3f}"
        assert line[head.index("By patient")] == f"{row['ged_by_group']['16']:.3f}"
    for part, names, name, best in (
        (found["distances"], head, "GED 16", min), (found["others"], other, "Matched IoU", max),
    ):  # fmt: skip
        column = [line[names.index(name)] for line in part.content[0].lines[: len(rows)]]
        assert [cell.text for cell in column if cell.bold] == [best((cell.text for cell in column), key=float)]
    assert not any(line[other.index("Diversity")].bold for line in found["others"].content[0].lines)
    assert not any(
        cell.bold
        for part in tables(block(fake_segment("bn3_unet"))).values()
        for line in part.content[0].lines
        for cell in line
    )


def test_notes_say_whose_images_are_resampled() -> None:
    note = tables(block(*several()))["distances"].note
    assert "2,000 resamples of the 9 patients" in note
    assert "so that the two who have 60 % of the images count no more" in note
    assert "there is none where samples come again" in note
    nobody = tables(block(*several(data="synthetic_graders", owned=False)))["distances"]
    assert "By owner" not in table_of(nobody)[0]
    assert "resamples of the images." in nobody.note


def test_intervals_of_several_trainings_are_of_their_mean() -> None:
    runs = [fake_segment("punet", seed) for seed in range(3)]
    (own,) = block(*runs).series
    each = np.mean([one["rows"][0]["per_image"]["16"] for one in runs], axis=0)
    assert masks.each_image(own.full, 16) == pytest.approx(each)
    (wanted,) = bootstrap_interval(torch.from_numpy(each)[:, None], groups_of(60))
    assert masks.span(own, own.full, 16) == pytest.approx((wanted.low, wanted.high))
    runs[1]["groups"] = runs[1]["groups"][::-1]  # other images
    (own,) = block(*runs).series
    assert (masks.groups_of(own), masks.span(own, own.full, 16)) == (None, None)


def test_differences_are_paired_over_images_and_their_groups_resampled() -> None:
    results = {one["method"]["key"]: one for one in several()}
    part = tables(block(*results.values()))["differences"]
    base = np.array(results["punet"]["rows"][0]["per_image"]["16"])
    assert part.heading == "GED 16, difference from P-UNet"
    lines, bold = part.content[0].lines, 0
    rows = [row for name, one in results.items() if name != "punet" for row in one["rows"]]
    for line, row in zip(lines, rows, strict=True):
        apart = torch.tensor(np.array(row["per_image"]["16"]) - base)
        (wanted,) = bootstrap_interval(apart[:, None], groups_of(60))
        assert line[2].text == masks.signed(wanted.mean)
        assert line[3].text == f"{masks.signed(wanted.low)} … {masks.signed(wanted.high)}"
        assert line[2].bold == (wanted.high < 0)
        bold += line[2].bold
        (alone,) = bootstrap_interval(torch.tensor(row["per_image"]["16"])[:, None], groups_of(60))
        assert wanted.high - wanted.low < alone.high - alone.low  # the same images are hard for all
    assert 0 < bold < len(rows)  # or the test says little


def test_without_a_reference_the_first_is_it_and_others_images_do_not_compare() -> None:
    found = block(fake_segment(), fake_segment("dropout_unet"), fake_segment("unet_ensemble", owned=False))
    part = tables(found)["differences"]
    assert part.heading == "GED 16, difference from VND-PUNet, 6 of 6"
    lines = table_of(part)[1]
    assert [line[:2] for line in lines] == [["VND-PUNet", "2 of 6"], ["UNet ensemble", "–"], ["dropout UNet", "–"]]
    assert [line[2] == "–" for line in lines] == [False, True, False]
    assert "differences" not in tables(block(fake_segment()))


def test_drawn_lengths_have_a_line_and_a_box_and_are_not_the_full_size() -> None:
    results = [fake_segment(drawn=True), fake_segment("punet")]
    results[0]["rows"].reverse()
    found, row = block(*results), results[0]["rows"][0]
    own = found.series[0]
    assert [point.label for point in own.points] == ["2 of 6", "6 of 6", "drawn"]
    assert own.full.label == "6 of 6"
    axis = masks.draw_boxes(found).axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["2 of 6", "6 of 6", "drawn"]
    assert means_of(axis)[-1] == row["ged"]["1"]
    (axis,) = masks.draw_diversity(found).axes
    assert max(len(line.get_xdata()) for line in axis.lines) == 2  # joined: the two lengths
    said = masks.overview(block(results[0]), Options("run"))[0].content[0].lines
    assert "measured at 2 sizes" in said[0][0].text
    assert f"{row['ged']['16']:.3f} with lengths that are drawn" in said[1][0].text


@pytest.mark.parametrize("data", ["lidc", "synthetic_graders"])
def test_what_was_published_and_the_truth_stand_beside_only_where_they_belong(data: str) -> None:
    found = block(*several(data=data, truth=data == "synthetic_graders"))
    head, lines = table_of(tables(found)["distances"])
    named = {line[0]: line for line in lines}
    assert (PUBLISHED in named, masks.TRUTH in named) == (data == "lidc", data == "synthetic_graders")
    note = masks.figures(found, PAGE)[0].note
    assert ("another split" in note, "true distribution" in note) == (data == "lidc", data == "synthetic_graders")
    if data == "lidc":
        assert [cell for cell in named[PUBLISHED][1:] if cell != "–"] == ["≈ 0.29"]
    else:
        wanted = found.runs[0].results["rows"][0]["expected_ged"]
        assert named[masks.TRUTH][head.index("GED 8")] == f"{wanted['8']:.3f}"


def test_boxes_and_lines_are_at_the_numbers_of_the_file() -> None:
    results = {one["method"]["key"]: one for one in several()}
    for axis, count in zip(masks.draw_boxes(block(*results.values())).axes, map(str, COUNTS), strict=True):
        boxed = [*results["vnd_punet"]["rows"], *results["bn3_unet"]["rows"]]
        assert means_of(axis) == [row["ged"][count] for row in boxed]
        for box, row in zip(axis.patches, boxed, strict=True):
            heights, wanted = box.get_path().vertices[:, 1], np.percentile(row["per_image"][count], (25, 75))
            assert (heights.min(), heights.max()) == pytest.approx(wanted)
        across = {str(line.get_label()): float(line.get_ydata()[0]) for line in axis.lines}
        assert across["P-UNet"] == results["punet"]["rows"][0]["ged"][count]
        assert across.get(PUBLISHED) == (0.29 if count == "16" else None)


def test_methods_of_one_size_have_boxes_where_there_are_no_others() -> None:
    found = block(fake_segment("punet", truth=True), fake_segment("dropout_unet"))
    axes = masks.draw_boxes(found).axes
    assert [len(axis.patches) for axis in axes] == [2] * 4
    alone = block(fake_segment("punet"))
    (axis,) = masks.draw_boxes(alone).axes
    assert means_of(axis) == list(alone.runs[0].results["rows"][0]["ged"].values())


def test_a_wide_interval_reaches_past_the_figure_that_its_means_fill() -> None:
    first, again = fake_segment("punet"), fake_segment("punet", seed=1)
    for row in again["rows"]:
        row["ged"] = {count: 2 * value for count, value in row["ged"].items()}
    found = block(first, again)
    (axis,) = masks.over_samples(found).axes
    measured = masks.ged(found.series[0].full, 1)
    assert measured is not None
    assert measured.mean < axis.get_ylim()[1] < 1.2 * measured.mean < measured.high


def test_calibration_is_drawn_at_the_numbers_of_the_file() -> None:
    one = fake_segment("punet")
    (label,) = one["reliability"]
    left, right = masks.draw_calibration(True, block(one)).axes
    assert list(left.lines[1].get_ydata()) == [x for x in one["reliability"][label]["frequency"] if x is not None]
    assert len(right.lines[0].get_ydata()) == 14  # one bin is empty


def test_the_flat_rows_have_the_intervals_over_groups_and_the_differences() -> None:
    results = several()
    rows = {(row["series"], row["label"]): row for row in html.rows(block(*results))}
    row = rows["VND-PUNet", "2 of 6"]
    low, high = results[0]["rows"][0]["ged_interval"]["16"]
    assert (row["ged_16 groups low"], row["ged_16 groups high"]) == (low, high)
    assert (row["ged_16 difference from"], row["image"]) == ("P-UNet", "")
    assert "ged_16 difference" not in rows["P-UNet", "100 %"]
