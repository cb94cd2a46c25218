"""State dicts, copies and pickles: the statistics of all widths travel with them, and what lacks them says so."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from structures import VARIED, Example, make, run
from torch import Tensor, nn

import vnd
from vnd.nn.state import NestedState, state_of

WIDTHS = (None, 0.5)
MISSING = "BatchNorm has no statistics for this width"


def trained(name: str, passes: int = 2, recalibrated: bool = True) -> tuple[nn.Module, Example]:
    """A nested network whose BatchNorm saw some batches, with statistics for two widths of either kind, or without."""
    _, net, example = make(name)
    with torch.no_grad():
        for _ in range(passes):
            run(net.train(), example)
    if recalibrated:
        batch = example if isinstance(example, dict) else (example,) if isinstance(example, Tensor) else example
        torch.manual_seed(passes)
        vnd.recalibrate(net, [batch], widths=(1.0, 0.5), samples="both")
    return net.eval(), example


@torch.no_grad()
def answers(net: nn.Module, example: Example) -> list[Tensor]:
    """Outputs at each width: in a block, and of what is cut out, of either kind."""
    found = [run(net, example)]
    for width in WIDTHS:
        with vnd.width(net, width):
            found.append(run(net, example))
        found.append(run(vnd.extract(net, width), example))
        with vnd.width(net, width, samples=True):
            found.append(run(net, example))
    return found


def same(a: nn.Module, b: nn.Module, example: Example) -> bool:
    return all(torch.equal(x, y) for x, y in zip(answers(a, example), answers(b, example), strict=True))


@pytest.mark.parametrize("name", VARIED)
def test_a_state_dict_brings_the_statistics_of_all_widths_along(name):
    net, example = trained(name)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    fresh = make(name)[1]
    other, _ = trained(name, passes=3)  # with statistics of its own, of other batches
    untrained, _ = trained(name)
    vnd.set_width(untrained, 0.5)
    for target in (fresh, other):
        assert not any(target.load_state_dict(state))  # strictly: nothing is missing or unexpected
        assert same(net, target.eval(), example)
    untrained.load_state_dict(state)  # at a width that is set
    with vnd.width(net, 0.5), torch.no_grad():
        assert torch.equal(run(net, example), run(untrained, example))
    assert same(net, copy.deepcopy(net), example)


@pytest.mark.filterwarnings("ignore:BatchNorm has no statistics", "ignore:load_state_dict")
@pytest.mark.parametrize("fault", ["not written", "not taken", "not let go of"])
def test_statistics_that_do_not_travel_are_caught(fault, monkeypatch):
    if fault == "not written":
        monkeypatch.setattr(NestedState, "write_state", lambda *_: None)
    elif fault == "not taken":
        monkeypatch.setattr(NestedState, "_take", lambda *_: None)
    else:  # a network that has statistics keeps them
        monkeypatch.setattr(NestedState, "before_loading", lambda plan, root, state, prefix, *_: drop(state, prefix))
    with pytest.raises(AssertionError):
        test_a_state_dict_brings_the_statistics_of_all_widths_along("flatten")


def drop(state: dict[str, Tensor], prefix: str) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}_vnd_")]:
        del state[key]


def test_a_fresh_conversion_that_loads_a_state_answers_as_the_trained_network():
    torch.manual_seed(0)
    x = torch.randn(8, 1, 28, 28)
    a, b = (vnd.to_nested(vnd.models.ConvNet(width=0.25), x[:2], num_groups=8) for _ in range(2))
    a.train()
    for _ in range(5):
        a(x)
    vnd.recalibrate(a.eval(), [x])
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(x), b.eval()(x))


def old(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of the time when statistics stayed behind."""
    state = dict(state)
    drop(state, "")
    return state


@pytest.mark.parametrize("name", ["residual, stream", "dense", "flatten", "decoder"])
def test_an_old_state_dict_loads_with_a_warning_and_warns_at_every_width(name):
    net, example = trained(name, recalibrated=False)
    other = make(name)[1]
    with pytest.warns(UserWarning, match=r"vnd\.recalibrate\(net, batches, widths=\(1\.0,\)\)") as caught:
        other.load_state_dict(old(net.state_dict()))
    assert caught[0].filename == __file__
    calls: list[Callable[[nn.Module], object]] = [
        lambda n: run(n, example),
        lambda n: vnd.extract(n),
        lambda n: vnd.extract(n, 0.5),
        lambda n: vnd.predict(n, example, link="identity", output=first, samples=0),
        lambda n: vnd.predict(n, example, link="identity", output=first, samples=2),
        lambda n: vnd.predict(n, example, 0.5, link="identity", output=first, samples=0),
    ]
    for call in calls:
        twin = copy.deepcopy(other)
        with pytest.warns(UserWarning, match=MISSING):
            call(twin)


def first(out: object) -> Tensor:
    return out if isinstance(out, Tensor) else next(iter(out.values() if isinstance(out, dict) else out))  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", ["residual, stream", "inverted", "several", "vgg11"])
def test_a_fresh_conversion_is_right_at_full_width_and_silent(name):
    plain, net, example = make(name)
    with torch.no_grad():
        wanted = run(plain.eval(), example)
        for found in (run(net, example), run(vnd.extract(net), example)):
            assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
        vnd.predict(net, example, link="identity", output=first, samples=2)
        twin = make(name)[1]
        twin.load_state_dict(net.state_dict())
        assert torch.equal(run(net, example), run(twin, example))


def test_a_network_that_was_trained_first_and_converted_then_is_right_at_full_width_also_where_it_is_loaded(tmp_path):
    plain, _, example = make("flatten")
    run(plain.train(), example)
    net = vnd.to_nested(plain.eval(), example, num_groups=4).eval()
    other = make("flatten")[1]
    other.load_state_dict(net.state_dict())
    vnd.save(net, tmp_path)
    with torch.no_grad():
        for twin in (other, vnd.load(tmp_path, model=make("flatten")[0])):
            assert torch.equal(run(twin, example), run(net, example))


class Wrapped(nn.Module):
    """A network within a module of its own, as Lightning has it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net


def through_a_wrapper(net: nn.Module, other: nn.Module, folder) -> None:
    Wrapped(other).load_state_dict(Wrapped(net).state_dict())


def through_compiled_networks(net: nn.Module, other: nn.Module, folder) -> None:
    torch.compile(other, backend="eager").load_state_dict(torch.compile(net, backend="eager").state_dict())


def through_torch_save(net: nn.Module, other: nn.Module, folder) -> None:
    torch.save(net.state_dict(), folder / "net.pt")
    other.load_state_dict(torch.load(folder / "net.pt", weights_only=True))


def through_safetensors(net: nn.Module, other: nn.Module, folder) -> None:
    from safetensors.torch import load_model, save_model

    save_model(net, str(folder / "net.safetensors"))
    assert load_model(other, str(folder / "net.safetensors")) == (set(), [])


def through_accelerate(net: nn.Module, other: nn.Module, folder) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True).save_model(net, str(folder))
    accelerate.load_checkpoint_in_model(other, str(folder))


def through_trainer(net: nn.Module, other: nn.Module, folder) -> None:
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_model

    args = transformers.TrainingArguments(str(folder), report_to="none", use_cpu=True)
    transformers.Trainer(net, args).save_model(str(folder))
    load_model(other, str(folder / "model.safetensors"))


def through_lightning(net: nn.Module, other: nn.Module, folder) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(Module(net))
    trainer.save_checkpoint(folder / "net.ckpt")
    Module.load_from_checkpoint(folder / "net.ckpt", net=other, weights_only=True)


def through_a_hub(net: nn.Module, other: nn.Module, folder) -> None:
    hub = pytest.importorskip("huggingface_hub")

    class Hub(Wrapped, hub.PyTorchModelHubMixin):
        pass

    Hub(net).save_pretrained(folder)
    Hub.from_pretrained(folder, net=other)


WAYS = [through_a_wrapper, through_compiled_networks, through_torch_save, through_safetensors]
WAYS += [through_accelerate, through_trainer, through_lightning, through_a_hub]


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", ["flatten", "tied embedding"])
def test_statistics_come_along_in_every_way_that_networks_are_kept(name, way, tmp_path):
    net, example = trained(name)
    other = make(name)[1]
    if way is through_trainer and name == "tied embedding":
        with pytest.raises(RuntimeError, match="share memory"):  # Trainer's own, of any network with tied weights
            way(net, other, tmp_path)
        return
    way(net, other, tmp_path)
    assert same(net, other.eval(), example)


def test_a_pickle_brings_them_along_and_the_width_that_it_was_made_at():
    net, example = trained("flatten")
    assert same(net, pickle.loads(pickle.dumps(net)), example)
    file = io.BytesIO()
    with vnd.width(net, 0.5), torch.no_grad():
        torch.save(net, file)
        wanted, twin = run(net, example), copy.deepcopy(net)
    file.seek(0)
    with torch.no_grad():
        for one in (twin, torch.load(file, weights_only=False)):
            assert torch.equal(run(one, example), wanted)
        assert not torch.equal(run(net, example), wanted)


def test_a_loaded_network_has_its_statistics_at_full_width_at_once(tmp_path):
    plain, _, _ = make("flatten")
    net, example = trained("flatten")
    vnd.save(net, tmp_path)
    loaded = vnd.load(tmp_path, model=plain)
    with torch.no_grad():
        assert torch.equal(run(loaded, example), run(net, example))


def test_statistics_of_another_network_or_that_are_not_finite_are_refused():
    net, _ = trained("flatten")
    state = net.state_dict()
    with pytest.raises(ValueError, match="must be those of this network"):
        make("flatten")[1].load_state_dict(state | {"_vnd_widths": state["_vnd_widths"][:, 1:]})
    for value in (float("nan"), -1.0):
        bad = torch.full_like(state["_vnd_statistics"], value)
        with pytest.raises(ValueError, match="must be finite, and no variance below 0"):
            make("flatten")[1].load_state_dict(state | {"_vnd_statistics": bad})


def test_a_part_of_a_state_leaves_statistics_alone_and_other_norms_do_not():
    net, example = trained("flatten")
    before = answers(net, example)
    net.load_state_dict({key: value for key, value in net.state_dict().items() if key.startswith("9.")}, strict=False)
    assert all(torch.equal(a, b) for a, b in zip(before, answers(net, example), strict=True))
    norms = {key: value for key, value in net.state_dict().items() if key.startswith("1.")}
    with pytest.warns(UserWarning, match="load_state_dict: the state dict has no BatchNorm statistics"):
        net.load_state_dict(norms, strict=False)
    assert not state_of(net).statistics
