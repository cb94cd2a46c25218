"""Auto-encoders at every length: rows by hand, lengths of images by brute force, drawn images by a made extractor."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.distributions import Normal

from vnd import metrics
from vnd.data.batches import Normalise
from vnd.data.images import Images
from vnd.methods import VAE, VNDAE, AutoencoderMethod, NestedAE, Sizes
from vnd.methods.codes import coded
from vnd.models import DenseAutoEncoder
from vnd.tasks import TASKS, TrainedRun
from vnd.tasks import autoencoding as coding
from vnd.tasks import autoencoding as drawing
from vnd.tasks.autoencoding import AutoencodingEvaluation, png_sizes
from vnd.tasks.features import Extractor

CODE, SIDE = 4, 8
LENGTHS = (1, 2, 4)
evaluate, work = TASKS["autoencoding"].evaluate, TASKS["autoencoding"].work
HALF = AutoencodingEvaluation(sizes=Sizes((0.25, 0.5, 1.0)), num_generated=0)
NOISE = 0.3


def made(count: int = 40, side: int = SIDE, seed: int = 0) -> Images:
    """Images of noise whose strength grows, so that some are simple and some are not."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 1, side, side)) * np.arange(1, count + 1)[:, None, None, None] // count
    return Images(pixels.astype(np.uint8), None, ())


def run_of(method: AutoencoderMethod, code: int = CODE) -> TrainedRun:
    """An auto-encoder of random weights, whose heads say something of each image."""
    torch.manual_seed(1)
    network = DenseAutoEncoder(latent_dim=code, image_size=SIDE, hidden=(16,))
    model = method.build(network, torch.zeros(2, 1, SIDE, SIDE)).eval()
    with torch.no_grad():
        for name, head in coded(model).heads.items():
            assert isinstance(head, nn.Linear)
            head.weight.mul_({"loc": 1.0, "log_variance": 0.5, "keep_logits": 40.0}[name])
            head.bias.fill_({"loc": 0.3, "log_variance": -1.0, "keep_logits": 0.7}[name])
    return TrainedRun(method, model, Normalise((0.5,), (0.5,), "cpu"))


def inputs(images: Images) -> Tensor:
    return torch.from_numpy(images.pixels).double().div(127.5).sub(1).float()


def heads(trained_run: TrainedRun, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    with torch.no_grad():
        found = coded(trained_run.model).encode(x)
    return found["loc"], (0.5 * found["log_variance"]).exp(), found.get("keep_logits")


def decoded(trained_run: TrainedRun, code: Tensor) -> Tensor:
    with torch.no_grad():
        return coded(trained_run.model).decode(code)


def cut(code: Tensor, length: int) -> Tensor:
    return torch.cat((code[:, :length], torch.zeros(len(code), code.size(1) - length)), 1)


def mean_error(trained_run: TrainedRun, x: Tensor, code: Tensor) -> Tensor:
    """Mean squared error of pixels between 0 and 1, (images,)."""
    return metrics.reconstruction_error((x + 1) / 2, (decoded(trained_run, code) + 1) / 2)


def check_fixed(trained_run: TrainedRun, images: Images, rows: list[dict[str, Any]]) -> None:
    x = inputs(images)
    loc, scale, _ = heads(trained_run, x)
    torch.manual_seed(0)
    drawn = loc + scale * torch.randn_like(loc)
    cost = torch.distributions.kl_divergence(Normal(loc, scale), Normal(0.0, 1.0))
    for row in rows:
        length = row["length"]
        error = mean_error(trained_run, x, cut(loc, length))
        assert row["mse"] == pytest.approx(float(error.mean()), rel=1e-5)
        assert row["summed"] == pytest.approx(float(error.mean()) * SIDE**2, rel=1e-5)
        seen = -Normal(decoded(trained_run, cut(drawn, length)).double(), NOISE).log_prob(x.double())
        assert row["distortion"] == pytest.approx(float(seen.flatten(1).sum(1).mean()), rel=1e-5)
        assert row["rate"] == pytest.approx(float(cost[:, :length].sum(1).mean()), rel=1e-5)
        assert row["negative_elbo"] == pytest.approx(row["distortion"] + row["rate"], rel=1e-12)


def row_of(results: dict[str, Any], reading: str) -> dict[str, Any]:
    (row,) = [row for row in results["tidy"] if row["length_rule"] == reading]
    return row


class Mean(nn.Module):
    """Features of an image: its mean and its spread by quarters; logits the same."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.scale * x.double().flatten(1).unflatten(1, (4, -1)).mean(2)
        return parts.float(), parts


def fake(weights: object = None, device: object = "cpu") -> Extractor:
    return Extractor("Made", "0" * 64, Mean().requires_grad_(False), lambda images: images / 255)


@pytest.fixture
def made_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "extractor", fake)


# Fixed lengths


def test_rows_of_fixed_lengths_are_those_by_hand() -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    results = evaluate(trained_run, HALF, images)
    assert [row["length"] for row in results["rows"]] == list(LENGTHS)
    assert [row["fraction"] for row in results["rows"]] == [0.25, 0.5, 1.0]
    assert (results["latent_dim"], results["features"]) == (4, None)
    check_fixed(trained_run, images, results["rows"])


@pytest.mark.parametrize("fault", ["rate of the whole code", "no noise", "pixels of −1 … 1", "one dimension more"])
def test_faulty_rows_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    if fault == "rate of the whole code":
        monkeypatch.setattr(VNDAE, "rate", lambda self, code, length=None: code.cost.sum(1))
    elif fault == "no noise":
        monkeypatch.setattr(VNDAE, "sample", VNDAE.point)
    elif fault == "pixels of −1 … 1":
        own = coding._measures
        monkeypatch.setattr(coding, "_measures", lambda found, error: own(found, 4 * error))
    else:
        monkeypatch.setattr(VNDAE, "point", lambda self, code, length=None: code.loc[:, : (length or 3) + 1])
    results = evaluate(trained_run, dataclasses.replace(HALF, target=1e-9), images)
    with pytest.raises(AssertionError):
        check_fixed(trained_run, images, results["rows"])


def test_a_vae_has_the_one_length_it_was_trained_with() -> None:
    trained_run, images = run_of(VAE(likelihood_std=NOISE), code=3), made()
    results = evaluate(trained_run, HALF, images)
    (row,) = results["tidy"]
    assert (row["length"], row["label"]) == (3, "3 of 3")
    assert results["lengths"] == {}
    assert results["complexity"] is None
    check_fixed(trained_run, images, [row])


def test_a_decoder_that_gives_no_dark_pixel_is_told() -> None:
    """One that ends in a sigmoid gives 0 … 1 where images lie between −1 and 1."""

    class Mine(nn.Module):
        def __init__(self, end: nn.Module) -> None:
            super().__init__()
            self.encoder, self.latent_dim = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 8)), 3
            self.decoder = nn.Sequential(nn.Linear(3, SIDE**2), end, nn.Unflatten(1, (1, SIDE, SIDE)))

    for end, told in ((nn.Sigmoid(), 1), (nn.Tanh(), 0)):
        model = VNDAE().build(Mine(end), torch.zeros(2, 1, SIDE, SIDE)).eval()
        results = evaluate(TrainedRun(VNDAE(), model, Normalise((0.5,), (0.5,), "cpu")), HALF, made())
        assert sum("as after a sigmoid" in note for note in results["notes"]) == told


def test_codes_without_a_prior_have_an_error_and_no_rate() -> None:
    trained_run, images = run_of(NestedAE(likelihood_std=NOISE)), made()
    results = evaluate(trained_run, dataclasses.replace(HALF, num_generated=8), images)
    assert [row["rate"] for row in results["rows"]] == [None] * 3
    assert [row["negative_elbo"] for row in results["rows"]] == [None] * 3
    x = inputs(images)
    with torch.no_grad():
        loc = coded(trained_run.model).encode(x)["loc"]
    wanted = [float(mean_error(trained_run, x, cut(loc, length)).mean()) for length in LENGTHS]
    assert [row["mse"] for row in results["rows"]] == pytest.approx(wanted, rel=1e-5)
    for row in results["rows"]:  # its codes are points: both are of the same images
        lost = row["summed"] * 4 / (2 * NOISE**2) + SIDE**2 / 2 * math.log(2 * math.pi * NOISE**2)
        assert row["distortion"] == pytest.approx(lost, rel=1e-6)
    assert results["features"] is None
    assert [note.partition(":")[0] for note in results["notes"]] == ["no images are drawn"]
    assert set(results["lengths"]) == {"target"}


# Lengths by image


def test_the_posterior_says_a_length_for_each_image() -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    results = evaluate(trained_run, HALF, images)
    x = inputs(images)
    loc, scale, logits = heads(trained_run, x)
    assert logits is not None
    keep = logits.double().sigmoid().cumprod(1)
    lengths = 1 + (keep >= 0.5).sum(1)
    assert len(lengths.unique()) > 2  # or the test says little
    row = row_of(results, "posterior")
    assert row["length"] == pytest.approx(float(lengths.double().mean()))
    assert (row["length_min"], row["length_max"]) == (float(lengths.min()), float(lengths.max()))
    assert row["length_min"] <= row["length_low"] <= row["length_median"] <= row["length_high"] <= row["length_max"]
    codes = torch.stack([cut(loc[i : i + 1], int(length))[0] for i, length in enumerate(lengths)])
    assert row["mse"] == pytest.approx(float(mean_error(trained_run, x, codes).mean()), rel=1e-5)
    survival = torch.cat((torch.ones(len(x), 1), keep), 1)
    ends = survival - torch.cat((survival[:, 1:], torch.zeros(len(x), 1)), 1)  # P(length = 1 … 4), by a uniform prior
    cost = torch.distributions.kl_divergence(Normal(loc, scale), Normal(0.0, 1.0)).double()
    rate = (torch.special.xlogy(ends, ends) + ends * math.log(CODE)).sum(1) + (ends * cost.cumsum(1)).sum(1)
    assert row["rate"] == pytest.approx(float(rate.mean()), rel=1e-5)
    assert row["negative_elbo"] == pytest.approx(row["distortion"] + row["rate"], rel=1e-12)
    assert results["lengths"]["posterior"] == torch.bincount(lengths, minlength=CODE + 1).tolist()


def test_lengths_are_drawn_where_the_bound_is_measured() -> None:
    """A length is 1 or 4, by even odds: the distortion lies between, at the mean of both, and not at the median's."""
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made(400)
    network = coded(trained_run.model)
    with torch.no_grad():
        network.heads["keep_logits"].weight.zero_()
        network.heads["keep_logits"].bias.copy_(torch.tensor([0.0, 60.0, 60.0]))
        network.heads["log_variance"].weight.zero_()
        network.heads["log_variance"].bias.fill_(-12.0)
    results = evaluate(trained_run, HALF, images)
    first, _, last = (row["distortion"] for row in results["rows"])
    share = (row_of(results, "posterior")["distortion"] - last) / (first - last)
    assert abs(share - 0.5) < 0.15
    assert row_of(results, "posterior")["mse"] == pytest.approx(results["rows"][-1]["mse"], rel=1e-6)


@pytest.mark.parametrize("target", [None, 0.05, 1e-9])
def test_the_shortest_codes_that_reach_a_target_are_those_of_a_search(target: float | None) -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    results = evaluate(trained_run, dataclasses.replace(HALF, target=target), images)
    x, wanted = inputs(images), target or results["rows"][1]["mse"]
    errors = torch.stack([mean_error(trained_run, x, cut(heads(trained_run, x)[0], b)) for b in range(1, CODE + 1)], 1)
    lengths = torch.tensor([next((b + 1 for b in range(CODE) if e[b] <= wanted), CODE) for e in errors])
    row = row_of(results, "target")
    assert (row["target"], row["length"]) == (pytest.approx(wanted), pytest.approx(float(lengths.double().mean())))
    own = errors.gather(1, lengths[:, None] - 1)[:, 0]
    assert row["mse"] == pytest.approx(float(own.mean()), rel=1e-5)
    assert row["reached"] == pytest.approx(float((own <= wanted).double().mean()))
    assert results["lengths"]["target"] == torch.bincount(lengths, minlength=CODE + 1).tolist()


def test_half_a_code_that_no_row_has_is_measured_for_the_target() -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    alone = evaluate(trained_run, AutoencodingEvaluation(sizes=Sizes((1.0,)), num_generated=0), images)
    assert row_of(alone, "target")["target"] == row_of(evaluate(trained_run, HALF, images), "target")["target"]


def test_lengths_are_held_against_the_bytes_of_a_png() -> None:
    trained_run, images = run_of(VNDAE(likelihood_std=NOISE)), made()
    results = evaluate(trained_run, HALF, images)
    sizes = png_sizes(images)
    buffer = io.BytesIO()
    Image.fromarray(images.pixels[7, 0]).save(buffer, "PNG", optimize=False)
    assert int(sizes[7]) == len(buffer.getvalue())
    found = results["complexity"]
    assert found["shown"]["png"] == sizes.tolist()
    for name in ("posterior", "target"):
        lengths = torch.tensor(found["shown"][name]).double()
        assert found["correlation"][name]["spearman"] == pytest.approx(float(metrics.spearman(lengths, sizes.double())))
        pair = np.corrcoef(lengths.numpy(), sizes.numpy())[0, 1]
        assert found["correlation"][name]["pearson"] == pytest.approx(pair)


def test_colours_are_part_of_a_png() -> None:
    grey = np.zeros((2, 3, 16, 16), np.uint8)
    grey[1] = np.random.default_rng(0).integers(0, 256, (3, 16, 16))
    flat, noise = png_sizes(Images(grey, None, ())).tolist()
    assert noise > 3 * 16 * 16 > flat


# Drawn images


def test_drawn_images_are_measured_by_the_features_of_a_named_extractor(made_features: None) -> None:
    trained_run, images, extractor = run_of(VNDAE(likelihood_std=NOISE)), made(), fake()
    results = evaluate(trained_run, dataclasses.replace(HALF, num_generated=200), images)  # two batches
    real = extractor.read(torch.from_numpy(images.pixels))[0]
    for row in results["rows"]:
        torch.manual_seed(0)
        codes = torch.cat([torch.randn(128, CODE), torch.randn(72, CODE)])
        pixels = ((decoded(trained_run, cut(codes, row["length"])).clamp(-1, 1) + 1) * 127.5).round().byte()
        features, probs = extractor.read(pixels)
        assert row["frechet"] == pytest.approx(float(metrics.frechet_distance(features, real)), rel=1e-3)
        assert row["inception_score"] == pytest.approx(float(metrics.inception_score(probs)[0]), rel=1e-5)
        spaced = features[torch.linspace(0, 199, 40).round().long()]  # as many as there are real ones
        assert row["diversity"] == pytest.approx(float(metrics.pairwise_distance(spaced)), rel=1e-3)
    about = results["features"]
    assert about["distance_name"] == "Fréchet distance (Made)"
    assert "FID" not in str(about)
    assert (about["name"], about["sha256"], about["num_generated"], about["real"]) == ("Made", "0" * 64, 200, 40)
    assert about["real_diversity"] == pytest.approx(float(metrics.pairwise_distance(real)))
    assert "frechet" not in row_of(results, "posterior")


def test_evaluation_draws_the_same_each_time_and_leaves_the_generator(made_features: None) -> None:
    trained_run, images, found = run_of(VNDAE(likelihood_std=NOISE)), made(), []
    for seed in (3, 4):
        torch.manual_seed(seed)
        found.append(evaluate(trained_run, dataclasses.replace(HALF, num_generated=20), images)["tidy"])
        after = torch.rand(())
        torch.manual_seed(seed)
        assert torch.rand(()) == after
    assert found[0] == found[1]


def test_without_the_package_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> Extractor:
        raise ModuleNotFoundError("extractor: no such package")

    monkeypatch.setattr(drawing, "extractor", missing)
    results = evaluate(run_of(VAE(likelihood_std=NOISE)), dataclasses.replace(HALF, num_generated=20), made())
    assert results["features"] is None
    assert results["notes"] == ["generated images are not measured: extractor: no such package"]
    assert "frechet" not in results["rows"][0]
    assert results["rows"][0]["mse"] > 0


def test_no_more_work_is_done_than_is_said(made_features: None) -> None:
    images = made()
    for method in (VNDAE(likelihood_std=NOISE), VAE(likelihood_std=NOISE), NestedAE(likelihood_std=NOISE)):
        for fractions in ((1.0,), (0.25, 0.5, 1.0)):
            options, done = AutoencodingEvaluation(sizes=Sizes(fractions), num_generated=30), list[int]()
            trained_run = run_of(method)
            evaluate(trained_run, options, images, done.append)
            whole = work(trained_run, options, images)
            least = whole - len(images) if fractions != (1.0,) and not isinstance(method, VAE) else whole
            least -= 30 * (1 + len(fractions)) if isinstance(method, NestedAE) else 0  # which draws nothing
            assert sum(done) == least
