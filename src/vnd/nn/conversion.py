"""Conversion: any network becomes a nested one, whose width is chosen at test time."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import partial
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from vnd.distributions import BernoulliChain, LogUniform
from vnd.functional import LogUniformForm
from vnd.nn.arguments import Output, check_output, describe_value, pick_tensor
from vnd.nn.attention import open_attention
from vnd.nn.bayesian import BAYES_OF, BayesLayer, Estimator, Noise, bayes_of
from vnd.nn.bits import MOST_BITS
from vnd.nn.channel_flow import MIXING, analyze
from vnd.nn.dependency import Analysis, Group, Segment
from vnd.nn.depth import Stage, find_stages, mask_blocks, outermost
from vnd.nn.describe import droppable_share
from vnd.nn.extract import ORIGINS, clear_caches, is_depthwise
from vnd.nn.importance import TaylorOrder, check_order, reorder
from vnd.nn.masked import mask_module
from vnd.nn.norms import WidthNorm, masked_of, with_widths
from vnd.nn.ordering import Gradient, OrderingUnit, Quantile, Sampler
from vnd.nn.predict import Link
from vnd.nn.state import InputMask, NestedState, OutputMask, ProductMask, arguments_of, state_of, unwrap
from vnd.nn.verify_slicing import try_slicing

DEFAULT_BITS = 8
RULED_OUT = "a rule says so"
NO_EXAMPLES = "a function reads its channels by a weight, which has no mask for each example"
Placement = Literal["after", "before_norm"]
Rescale = Literal["none", "expected"]
Granularity = Literal["output", "input", "weight", "bits", "depth"]
Coupling = Literal["quantile", "independent"]


@dataclass(frozen=True)
class Rule:
    """Options for the layers that a name pattern of `to_nested` matches; None leaves the default.

    Args:
        nest: Order this layer's output channels, or leave them whole. True also opts in to a residual stream.
        num_groups: Number of groups.
        base: Number of groups that are always kept.
        prior: Prior over the lengths, as in `OrderingUnit`.
        bayesian: A posterior over this layer's weights, or point weights.
        log_alpha_init: Where the layer's log α starts.
        granularity: What the layer's unit orders. "output" (default): its output channels, with all that is tied to
            them. "input": the input channels as this layer alone reads them, the rows of its weight. "weight": its
            single weights, in the order in which they lie; a smaller network then has zeros, not fewer weights.
            "bits": the bits of its weights, which are point weights then, with a scale for each output channel
            (`vnd.nn.bits`); `num_groups` (a bit each), `base` (1, the sign) and `prior` are those of the bits. Its
            output channels stay whole, unless `nest` is True: then they have the options of `to_nested`.
            "depth": the rule is for the stages whose blocks, or whose container, it matches, and for no layer: `nest`,
            `num_groups` (a block each), `base` (1) and `prior`.
        bits: Number of bits of a weight, 1 … 16 (8); for granularity "bits".

    >>> import torch, vnd
    >>> plain = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4, rules={"0": vnd.Rule(nest=False)})
    >>> list(vnd.shape(net, fraction=0.5))
    ['2']
    """

    nest: bool | None = None
    num_groups: int | None = None
    base: int | None = None
    prior: BernoulliChain | float | None = None
    bayesian: bool | None = None
    log_alpha_init: float | None = None
    granularity: Granularity | None = None
    bits: int | None = None

    def over(self, other: Rule) -> Rule:
        """Fields that are None here are taken from `other`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return Rule(**{name: getattr(other, name) if value is None else value for name, value in own.items()})


def to_nested(
    model: nn.Module,
    example_input: Tensor | tuple[Any, ...] | dict[str, Any],
    num_groups: int = 32,
    base: int = 1,
    bayesian: bool = True,
    rules: Mapping[str, Rule] | None = None,
    order: Literal["magnitude"] | TaylorOrder | None = None,
    residual: bool = False,
    depth: bool = False,
    *,
    output: Output | None = None,
    placement: Placement = "after",
    coupling: Coupling = "quantile",
    rescale: Rescale = "none",
    log_alpha_init: float = -3.0,
    estimator: Estimator = "local",
    noise: Noise = "weight",
    weight_prior: LogUniformForm | float = "vnd",
    kl_constant: float | None = None,
    free_variance: bool = False,
    variance_share: float = 1.0,
    link: Link | None = None,
    prior: BernoulliChain | float | None = None,
    temperature: float = 2.0,
    initial_logit: float = 3.0,
    hard: bool = True,
    per_example: bool = False,
    gradient: Gradient | None = None,
    sampler: Sampler = "exact",
) -> nn.Module:
    """Turn a network into one whose layers are nested: a copy of the same class, with the same methods and state names.

    A run on the example shows which channels depend on which. Layers of the types in `BAYES_OF`, and of classes that
    inherit their forward pass, become their Bayesian forms, each group of tied channels gets an `OrderingUnit`, and
    whatever mixes channels multiplies those of its input by the units' masks: after normalisation and activation,
    whatever lies between. Channels that reach the output, that pass through something unknown, or whose slicing fails
    on the example, stay whole; `describe` says why. Residual streams stay whole unless `residual` or a rule asks for
    them. A network of which nothing can be nested is an error, one of which less than a tenth of the parameters can be
    dropped a warning.

    Weights that several layers share stay shared: they are cut and sorted alike, or left whole, and they are point
    weights, since the draws of two layers would be two weights.

    In training the masks are drawn at the start of each forward pass of the network. Other methods of it, called by
    themselves, run at the quantile of the last one.

    Args:
        model: Any module whose path through its code does not hang on the values of tensors.
        example_input: A tensor, a tuple of arguments or a dict of keyword arguments for `model`.
        num_groups: Number of groups a unit has, at most one a channel.
        base: Number of groups that are always kept.
        bayesian: A posterior over the weights, or point weights (FN³).
        rules: Exceptions by name pattern (`fnmatch`), of layers or of modules that hold them; the later ones win.
        order: First sorts the channels of a pretrained network by importance, its function unchanged: "magnitude" of
            its weights, or what `vnd.taylor_order` measured on data.
        residual: Nest residual streams, too: the channels that additions tie through many layers.
        depth: Order the residual blocks of each stage as well, by a unit with a group for each block, of which the
            first always stays; rules of granularity "depth" say otherwise. Kept blocks are never rescaled. See
            `vnd.nn.depth`.
        output: The tensor that counts, where the network gives several: a key or an attribute, an index, or a function
            of its output, as in `predict`. What else it gives may become narrower. None for all of them.
        placement: "before_norm" masks a layer's output right away, as the released code does: for reproduction only,
            such a network cannot be extracted.
        coupling: One draw of u for all units ("quantile"), or one each ("independent", the paper).
        rescale: "expected" multiplies kept units by their probability of being kept in evaluation, as the paper does;
            "none" leaves them as they were trained.
        log_alpha_init: Where log α starts.
        estimator: How layers sample: "local", "weight" or "flipout"; see `BayesLayer`.
        noise: What has a log α of its own: each "weight", each output "channel" or the "layer".
        weight_prior: The form of the log-uniform prior of weights ("vnd", "exact", "molchanov", "kingma"), or the
            scale of a Gaussian one.
        kl_constant: C of the log-uniform KL, the price of a kept weight; 0 for the paper's form as it is printed, None
            for that which makes the smallest KL 0. See `vnd.functional.log_uniform_kl`.
        free_variance: A free log σ² instead of log α under a log-uniform prior; see `BayesLayer`.
        variance_share: Share of a batch through whose output variances gradients flow, for faster steps; see
            `BayesLayer`.
        link: What its outputs stand for, where nothing is said there; see `vnd.predict`.
        prior: Prior over a unit's lengths; this and what follows are arguments of `OrderingUnit`.
        temperature: τ of the Downhill posterior.
        initial_logit: Where the logits of the chain's keep probabilities start.
        hard: Masks of 0 and 1 in the forward pass.
        per_example: A mask for each example of a batch, not one for all.
        gradient: Estimator of the gradient of the order.
        sampler: The exact sampler, or that of the released code.

    >>> net = to_nested(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(1, 4), num_groups=8)
    >>> list(state_of(net).units)
    ['0']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"to_nested: model must be an nn.Module; got {describe_value(model)}")
    if hasattr(unwrap(model), "_vnd_state"):
        raise ValueError("to_nested: the model is a nested network already")
    if type(model) in BAYES_OF:
        raise ValueError(f"to_nested: a single {type(model).__name__} has nothing to nest; use its Bayesian form")
    choices = (
        *(("placement", placement, Placement), ("coupling", coupling, Coupling), ("rescale", rescale, Rescale)),
        ("link", link, Link),
    )
    for name, value, kind in choices:
        if value not in get_args(kind) and not (name == "link" and value is None):
            raise ValueError(f"to_nested: {name} must be {' or '.join(map(repr, get_args(kind)))}; got {value!r}")
    check_order(order, model)
    check_output(output, "to_nested")
    for name, count in (("num_groups", num_groups), ("base", base)):
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise ValueError(f"to_nested: {name} must be a whole number; got {describe_value(count)}")
    if not isinstance(bayesian, bool):
        raise ValueError(f"to_nested: bayesian must be True or False; got {describe_value(bayesian)}")
    if base > num_groups:
        raise ValueError(f"to_nested: base must lie in 0 … num_groups = {num_groups}; got {base}")
    if isinstance(weight_prior, float | int) and not weight_prior > 0:
        raise ValueError(f"to_nested: weight_prior as a Gaussian's scale must be greater than 0; got {weight_prior}")
    if kl_constant is not None and not (isinstance(weight_prior, str) and math.isfinite(kl_constant)):
        raise ValueError(f"to_nested: kl_constant must be a number, for a log-uniform weight_prior; got {kl_constant}")
    _check_layers(model)
    _check_rules(model, rules)
    args, kwargs = arguments_of(example_input)
    unit_options: dict[str, Any] = {
        **{"prior": prior, "temperature": temperature, "initial_logit": initial_logit, "hard": hard},
        **{"per_example": per_example, "gradient": gradient, "sampler": sampler},
    }
    arguments = {
        **{"num_groups": num_groups, "base": base, "bayesian": bayesian, "rules": dict(rules or {})},
        **{"placement": placement, "coupling": coupling, "log_alpha_init": log_alpha_init, **unit_options},
        **{
            "residual": residual,
            "depth": depth,
            "output": output,
            "rescale": rescale,
            "estimator": estimator,
            "noise": noise,
            "weight_prior": weight_prior,
            "kl_constant": kl_constant,
        },
        **{"free_variance": free_variance, "variance_share": variance_share, "link": link},
    }
    defaults = Rule(None, num_groups, base, unit_options.pop("prior"), bayesian, log_alpha_init, "output")
    of_weights = (
        LogUniform(weight_prior, kl_constant) if isinstance(weight_prior, str) else Normal(0.0, float(weight_prior))
    )
    layer_options = {
        **{"estimator": estimator, "noise": noise, "prior": of_weights, "free_variance": free_variance},
        "variance_share": variance_share,
    }
    options = {
        "residual": residual,
        "placement": placement,
        "coupling": coupling,
        "layers": layer_options,
        **unit_options,
        "rescale": rescale == "expected",
    }
    pick = (lambda out: out) if output is None else partial(pick_tensor, output=output, who="to_nested")
    own = {pattern: rule for pattern, rule in (rules or {}).items() if rule.granularity != "depth"}
    of_blocks = {pattern: rule for pattern, rule in (rules or {}).items() if rule.granularity == "depth"}
    if of_blocks and not depth:
        raise ValueError(f"to_nested: the rule {next(iter(of_blocks))!r} is of blocks; give depth=True, too")
    analysis = analyze(_opened(model), args, kwargs, pick)
    stages: dict[str, Stage] = {}
    if depth:
        stages, reasons = find_stages(_opened(model), args, kwargs)
        analysis.whole |= {} if stages else reasons
    refused: dict[str, str] = {}
    while True:
        ordered = _choose_stages(stages, of_blocks, refused)
        orders = {name: (stage, _depth_rule(stage, of_blocks, defaults)) for name, stage in ordered.items()}
        net = _build(_opened(model), analysis, defaults, own, refused, options, (args, kwargs), order, orders)
        failures = {} if placement == "before_norm" else try_slicing(net, args, kwargs, pick)
        if not failures:
            break
        refused |= failures
    state = state_of(net)
    state.arguments, state.origin = arguments, ORIGINS.get(model)
    _check_share(net, rules or {})
    _check_effect(net, own, analysis)
    _check_unused(own, analysis)
    if depth:
        _check_depth(net, stages, of_blocks)
    return net


def _opened(model: nn.Module) -> nn.Module:
    """A copy whose attention layers can be looked into; of a weight norm it has the result."""
    copied = copy.deepcopy(model)
    clear_caches(copied)
    open_attention(copied)
    for module in copied.modules():
        found = getattr(module, "parametrizations", {})
        if found and all(type(x).__name__ == "_WeightNorm" for how in found.values() for x in how):
            values = {name: nn.Parameter(getattr(module, name).detach().clone()) for name in found}
            module.__class__ = type(module).__bases__[0]  # torch's own way back would change the class for all copies
            del module._modules["parametrizations"]
            module._parameters.update(values)
            hooks = module._load_state_dict_pre_hooks  # torch's one for old names cannot be pickled
            for key in [k for k, h in hooks.items() if "weight_norm" in getattr(h.hook, "__name__", "")]:  # type: ignore[attr-defined]
                del hooks[key]
        for hook in [h for h in module._forward_pre_hooks.values() if type(h).__name__ == "WeightNorm"]:
            nn.utils.remove_weight_norm(module, hook.name)  # type: ignore[attr-defined]
    return copied


def _build(
    net: nn.Module,
    analysis: Analysis,
    defaults: Rule,
    rules: Mapping[str, Rule],
    refused: dict[str, str],
    options: dict[str, Any],
    example: tuple[tuple[Any, ...], dict[str, Any]],
    order: Literal["magnitude"] | TaylorOrder | None,
    orders: Mapping[str, tuple[Stage, Rule]],
) -> nn.Module:
    if options["per_example"]:
        if any(rule.granularity == "bits" for rule in rules.values()):
            raise ValueError("to_nested: granularity 'bits' needs one mask a batch; got per_example=True")
        refused = {**dict.fromkeys(_read_by_functions(net, analysis), NO_EXAMPLES), **refused}
    chosen, whole = _choose(analysis, rules, defaults, refused, options["residual"])
    whole |= {name: reason for name, reason in refused.items() if name.endswith("[depth]")}
    unit_options = {k: v for k, v in options.items() if k not in ("placement", "coupling", "layers", "residual")}
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    units = {}
    for name, (stage, rule) in orders.items():
        blocks = Group(name, list(stage.blocks), len(stage.blocks))
        units[name] = _make_unit(blocks, rule, {**unit_options, "rescale": False}).to(device)
    of_channels = {  # those of bits say how many bits there are
        pattern: replace(rule, num_groups=None, base=None, prior=None) if rule.granularity == "bits" else rule
        for pattern, rule in rules.items()
    }
    for group in chosen.values():
        rule = _rule(group.producers, of_channels, defaults)
        units[group.name] = _make_unit(group, rule, unit_options).to(device)
    rows, elements, bits = _own_units(net, rules, defaults, analysis)
    if tied := next((name for name in (*rows, *elements, *bits) if name in analysis.shared), None):
        raise ValueError(f"to_nested: granularity must be 'output' for {tied}, whose weight is used elsewhere, too")
    for name, key in bits.items():
        rule, count = _bits_rule(name, rules, defaults)
        units[key] = _make_unit(Group(key, [name], count), rule, {**unit_options, "rescale": False}).to(device)
    for name, key in (*rows.items(), *elements.items()):
        layer: Any = net.get_submodule(name)
        rule = _rule(name, rules, defaults)
        bayes = bayes_of(type(layer))
        assert bayes is not None
        size = layer.weight.numel() if name in elements else layer.weight.size(bayes.input_dim)
        units[key] = _make_unit(Group(key, [name], size), rule, unit_options).to(device)
    quantile = Quantile().to(device) if options["coupling"] == "quantile" and units else None

    def known(layouts: Any) -> Any:
        """A layout in which the channels of units that were not chosen belong to none."""
        return tuple(s if s.unit in units else Segment(None, s.size) for s in layouts)

    def reached(table: dict[str, Any]) -> dict[str, Any]:
        kept = {name: known(layout) for name, layout in table.items()}
        return {name: layout for name, layout in kept.items() if any(s.unit for s in layout)}

    parameters = {
        name: tuple(None if layout is None else known(layout) for layout in layouts)
        for name, layouts in analysis.parameters.items()
    }
    state = NestedState(
        groups=chosen,
        units=units,
        inputs=reached(analysis.inputs),
        outputs=reached(analysis.outputs),
        parameters=parameters,
        masked={name: dim for name, dim in analysis.masked.items() if any(s.unit for s in parameters[name][dim] or ())},
        reductions={
            name: tuple(replace(r, layout=known(r.layout)) for r in found)
            for name, found in analysis.reductions.items()
        },
        attributes={
            name: (known(layout), *rest)
            for name, (layout, *rest) in analysis.attributes.items()
            if any(s.unit in units for s in layout)
        },
        rows=rows,
        elements=elements,
        bits=bits,
        whole=whole,
        first_consumers=analysis.first_consumers,
        functional=analysis.functional,
        quantile=quantile,
        options=options,
        arguments={},
        example=example,
        stages={name: stage for name, (stage, _) in orders.items()},
    )
    state.within = _within_blocks(state)
    if order is not None:
        reorder(net, state, order)
    _swap_layers(net, state, rules, defaults, options["placement"], analysis)
    _swap_norms(net, set(state.functional))
    modules = dict(net.named_modules())
    for index, (name, unit) in enumerate(units.items()):
        holder = modules[_holder(name, modules, state)]
        number = sum(key.startswith("ordering") for key in holder._modules)
        holder.add_module(f"ordering{number or ''}", unit)
        if quantile is not None:
            unit.join(quantile)
            if index == 0:
                unit.shared_quantile = quantile
    mask_blocks(net, state.stages, units)
    object.__setattr__(net, "_vnd_state", state)
    net.register_forward_pre_hook(state.before_forward, with_kwargs=True)
    net.register_forward_hook(state.after_forward, always_call=True)
    net._register_state_dict_hook(state.write_state)
    net.register_load_state_dict_pre_hook(state.before_loading)
    net.register_load_state_dict_post_hook(state.after_loading)
    state.converted_at = state.stamp(net)
    return net


def _holder(unit: str, modules: Mapping[str, nn.Module], state: NestedState) -> str:
    """The module that holds a unit: the layer it is named by, or the one whose parameter it is named by.

    A unit of blocks, and one of channels that go beyond the block that their layer lies in, is in the first block.
    """
    if unit in state.stages:
        return state.stages[unit].holder(modules)
    name = unit.partition("[")[0]
    name = name if name in modules else name.rpartition(".")[0]
    place = state.place_of(name)
    return name if place is None or unit in state.within else state.stages[place[0]].holder(modules)


def _within_blocks(state: NestedState) -> dict[str, tuple[str, int]]:
    """The units all of whose channels lie within one block, with that block."""
    if not state.stages:
        return {}
    places: dict[str, set[tuple[str, int] | None]] = {}
    for name, layouts in (
        *((name, (layout,)) for table in (state.inputs, state.outputs) for name, layout in table.items()),
        *state.parameters.items(),
    ):
        for unit in {s.unit for layout in layouts if layout is not None for s in layout if s.unit is not None}:
            places.setdefault(unit, set()).add(state.place_of(name))
    for name, unit in state.own_units.items():
        places[unit] = {state.place_of(name)}
    return {unit: place for unit, found in places.items() if len(found) == 1 and (place := next(iter(found)))}


def _choose_stages(
    stages: Mapping[str, Stage], rules: Mapping[str, Rule], refused: Mapping[str, str]
) -> dict[str, Stage]:
    """The stages whose blocks are ordered: the outermost ones of those that no rule and no trial speaks against."""
    wanted = [s for name, s in stages.items() if _rule(list(s.blocks), rules, Rule()).nest is not False]
    return outermost(stage for stage in wanted if stage.name not in refused)


def _depth_rule(stage: Stage, rules: Mapping[str, Rule], defaults: Rule) -> Rule:
    """Options of a stage's unit."""
    return _few_rule(list(stage.blocks), len(stage.blocks), rules, defaults)


def _bits_rule(name: str, rules: Mapping[str, Rule], defaults: Rule) -> tuple[Rule, int]:
    """Options of the unit of a layer's bits, and how many bits there are."""
    bits = _rule(name, rules, defaults).bits
    count = DEFAULT_BITS if bits is None else bits
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_BITS:
        raise ValueError(f"to_nested: bits must be a whole number in 1 … {MOST_BITS}; got {count!r} for {name}")
    of_bits = {pattern: rule for pattern, rule in rules.items() if rule.granularity == "bits"}
    rule = _few_rule([name], count, of_bits, defaults)
    if rule.base is not None and rule.base < 1:
        raise ValueError(f"to_nested: base must be at least 1 for the bits of {name}; got {rule.base}")
    return rule, count


def _few_rule(names: list[str], count: int, rules: Mapping[str, Rule], defaults: Rule) -> Rule:
    """Options of a unit of blocks or bits: a group for each, the first one stays; the prior keeps the same share."""
    prior = defaults.prior
    own = Rule(num_groups=count, base=1)
    if isinstance(prior, float | int):
        assert defaults.num_groups is not None
        assert defaults.base is not None
        if defaults.num_groups > defaults.base:
            own = replace(own, prior=1 + (prior - defaults.base) / (defaults.num_groups - defaults.base) * (count - 1))
    rule = _rule(names, rules, Rule())
    if rule.prior is None and (rule.num_groups is not None or rule.base is not None) and own.prior is not None:
        own = replace(own, prior=None)
    return rule.over(own)


def _read_by_functions(net: nn.Module, analysis: Analysis) -> set[str]:
    """Units of channels that are masked in a weight, one mask for all examples."""
    layouts = [analysis.parameters[name][dim] for name, dim in analysis.masked.items()]
    for name, layout in analysis.inputs.items():
        layer = net.get_submodule(name)
        if isinstance(layer, MIXING) and bayes_of(type(layer)) is None:
            layouts.append(layout)
    return {segment.unit for layout in layouts for segment in layout or () if segment.unit is not None}


def _choose(
    analysis: Analysis, rules: Mapping[str, Rule], defaults: Rule, refused: dict[str, str], residual: bool
) -> tuple[dict[str, Group], dict[str, str]]:
    """The groups to nest, and why each other layer stays whole."""
    chosen, whole = {}, dict(analysis.whole)
    for name, group in analysis.groups.items():
        found = [_rule(producer, rules, defaults) for producer in group.producers]
        wish = [rule.nest for rule in found]
        reason = refused.get(name)
        if reason is None and any(rule.granularity in ("input", "weight") for rule in found):
            reason = "a rule orders its input rows or single weights instead"
        if reason is None and any(rule.granularity == "bits" and rule.nest is None for rule in found):
            reason = "a rule orders its bits instead"
        if reason is None and False in wish:
            reason = RULED_OUT
        if reason is None and group.residual and not residual and True not in wish:
            reason = "a residual stream (nest it with residual=True)"
        if reason is None:
            chosen[name] = group
        else:
            whole |= dict.fromkeys(group.producers, reason)
    return chosen, whole


def _own_units(
    net: nn.Module, rules: Mapping[str, Rule], defaults: Rule, analysis: Analysis
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Layers whose input rows, single weights, or bits a rule orders, with the names of their units."""
    rows: dict[str, str] = {}
    elements: dict[str, str] = {}
    bits: dict[str, str] = {}
    ran = {id(net.get_submodule(name)) for name in analysis.called}
    for name, module in net.named_modules():
        rule = _rule(name, rules, defaults)
        kind = rule.granularity
        if kind not in get_args(Granularity):
            raise ValueError(f"to_nested: granularity must be one of {', '.join(get_args(Granularity))}; got {kind!r}")
        if bayes_of(type(module)) is None or id(module) not in ran:
            continue
        if kind != "bits" and rule.bits is not None:
            raise ValueError(f"to_nested: bits of {name} need granularity='bits'; got {kind!r} and {rule.bits!r}")
        if kind == "output":
            continue
        if getattr(module, "groups", 1) > 1 and kind != "bits":
            raise ValueError(
                f"to_nested: granularity {kind!r} needs a layer without groups; {name} has {module.groups}"
            )
        (rows if kind == "input" else elements if kind == "weight" else bits)[name] = f"{name}[{kind}]"
    return rows, elements, bits


def _rule(name: str | list[str], rules: Mapping[str, Rule], defaults: Rule) -> Rule:
    """Rule of a layer, or of tied ones: the later rules win, whichever of the layers they match."""
    found = defaults
    for pattern, rule in rules.items():
        if any(_matches(one, pattern) for one in ([name] if isinstance(name, str) else name)):
            found = rule.over(found)
    return found


def _make_unit(group: Group, rule: Rule, options: dict[str, Any]) -> OrderingUnit:
    assert rule.num_groups is not None
    assert rule.base is not None
    num_groups = min(rule.num_groups, group.channels // group.tiles)
    base = min(rule.base, num_groups)
    prior = None if num_groups == base else rule.prior
    if isinstance(prior, float | int) and num_groups < rule.num_groups:  # the same share of the fewer groups
        prior = base + (prior - rule.base) / (rule.num_groups - rule.base) * (num_groups - base)
    try:
        return OrderingUnit(group.channels, num_groups, base, tiles=group.tiles, prior=prior, **options)
    except ValueError as error:
        raise ValueError(f"to_nested: the unit of {group.name}: {error}") from None


def _swap_layers(
    net: nn.Module, state: NestedState, rules: Mapping[str, Rule], defaults: Rule, placement: str, analysis: Analysis
) -> None:
    """Put Bayesian layers and masked norms in the place of torch's own, and attach the masks."""
    seen: dict[int, nn.Module] = {}
    own = {
        id(net.get_submodule(name)) for name in analysis.called
    }  # what lies within torch's composite modules stays as it is
    for name, module in list(net.named_modules(remove_duplicate=False)):
        if id(module) not in own:
            continue
        rule = _rule(name, rules, defaults)
        if name in analysis.shared or name in state.bits:
            rule = Rule(bayesian=False).over(rule)
        layout = state.inputs.get(name)
        mask: InputMask | ProductMask | None = None
        if layout is not None and placement == "after" and not is_depthwise(module):
            mask = InputMask(layout, state.units)
        if (unit := state.rows.get(name)) is not None:
            rows = InputMask((Segment(unit, state.units[unit].channels),), state.units)
            mask = rows if mask is None else ProductMask(mask, rows)
        bayes, masked = bayes_of(type(module)), masked_of(type(module))
        if bayes is not None and (rule.bayesian or mask or name in state.own_units):
            new = seen.get(id(module))
            if new is None:
                given = {"bayesian": bool(rule.bayesian), "log_alpha_init": rule.log_alpha_init}
                new = bayes.from_plain(module, **given, **state.options["layers"])
                seen[id(module)] = new
                new.set_input_mask(mask)
                if name in state.elements:
                    new.set_weight_mask(state.units[state.elements[name]].channel_mask)
                if name in state.bits:
                    new.set_weight_bits(state.units[state.bits[name]].channel_mask)
            _replace(net, name, new)
        elif masked is not None and mask:
            _replace(net, name, masked.from_plain(module, mask))
        elif isinstance(module, MIXING) and bayes is None and mask is not None and id(module) not in seen:
            seen[id(module)] = module  # a layer without a Bayesian form, of which the weight is masked
            mask_module(module, {"weight": (mask, 0 if getattr(module, "transposed", False) else 1)}, ())
    if placement == "after":
        _mask_functions(net, state)
    if placement == "before_norm":
        modules = dict(net.named_modules())
        for name, group in state.groups.items():
            for producer in group.producers:
                dim = -1 if isinstance(modules[producer], nn.Linear) else 1
                modules[producer].register_forward_hook(OutputMask(state.units[name], dim).hook)


def _mask_functions(net: nn.Module, state: NestedState) -> None:
    """Mask the weights that functions read, and statistics over channels that modules take by functions."""
    modules = dict(net.named_modules())
    weights: dict[str, dict[str, Any]] = {}
    for path, dim in state.masked.items():
        tensor = _parameter(net, path)
        for name, module in modules.items():
            for key, value in module._parameters.items():
                if value is tensor and not isinstance(module, BayesLayer):
                    layout = state.parameters[path][dim]
                    assert layout is not None
                    weights.setdefault(name, {})[key] = InputMask(layout, state.units), dim
    for name in {*weights, *state.reductions}:
        statistics = [
            ((r.function, r.dim, r.size), InputMask(r.layout, state.units))
            for r in state.reductions.get(name, ())
            if any(segment.unit for segment in r.layout)
        ]
        if name in weights or statistics:
            mask_module(modules[name], weights.get(name, {}), statistics)


def _parameter(net: nn.Module, path: str) -> Tensor | None:
    owner, _, key = path.rpartition(".")
    return net.get_submodule(owner)._parameters[key]


def _swap_norms(net: nn.Module, functional: set[str]) -> None:
    """Give every BatchNorm that keeps running statistics, of whatever class, statistics per width."""
    seen: dict[int, nn.Module] = {}
    for name, module in list(net.named_modules(remove_duplicate=False)):
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, WidthNorm)
        if batch_norm and module._buffers.get("running_mean") is not None and name and name not in functional:
            if id(module) not in seen:
                seen[id(module)] = with_widths(type(module)).from_plain(module)
            _replace(net, name, seen[id(module)])


def _replace(net: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, new)


def _check_layers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            kind = type(module).__name__
            raise ValueError(f"to_nested: {name} is a {kind} that has no size yet; run the model on an example first")


def _check_share(net: nn.Module, rules: Mapping[str, Rule]) -> None:
    """Refuse a network of which nothing is nested, and warn of one of which little is, unless rules say so."""
    state = state_of(net)
    if any(rule.nest is False for rule in rules.values()):
        return
    if not state.units:
        dull = ("did not run", "reaches the output")  # what nobody would mend is said last
        said = sorted(state.whole.items(), key=lambda entry: any(word in entry[1] for word in dull))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in said[:3])
        residual = any(reason.startswith("a residual stream") for reason in state.whole.values())
        advice = "give residual=True" if residual else "change what keeps its layers whole"
        raise ValueError(
            f"to_nested: nothing of {type(net).__name__} can be nested; {advice}: "
            f"{reasons or 'it has no linear layer or convolution'}"
        )
    share = droppable_share(net)
    if share < 0.1 and any(unit.base < unit.num_groups for unit in state.units.values()):
        warnings.warn(
            f"to_nested: only {100 * share:.1f} % of the parameters of {type(net).__name__} can be dropped; "
            "vnd.describe(net) says which layers stay whole, and why",
            stacklevel=3,
        )


def _check_depth(net: nn.Module, stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    """Warn where the blocks of no stage are ordered, and of rules that match no stage."""
    state = state_of(net)
    for pattern in rules:
        if not any(_matches(block, pattern) for stage in stages.values() for block in stage.blocks):
            warnings.warn(f"to_nested: the rule {pattern!r} matches no stage of blocks", stacklevel=3)
    if not state.stages and not any(rule.nest is False for rule in rules.values()):
        found = [(name.removesuffix("[depth]"), why) for name, why in state.whole.items() if name.endswith("[depth]")]
        reasons = "; ".join(f"{name or type(net).__name__}: {why}" for name, why in found[:3])
        warnings.warn(f"to_nested: depth=True has no effect: {reasons}", stacklevel=3)


def _check_effect(net: nn.Module, rules: Mapping[str, Rule], analysis: Analysis) -> None:
    """Warn of rules that ask for what no layer of theirs can have."""
    state = state_of(net)
    nested = {*state.rows, *state.elements, *(name for group in state.groups.values() for name in group.producers)}
    layers = _nestable(net)
    for pattern, rule in rules.items():
        matched = [name for name in layers if _matches(name, pattern)]
        reasons = [(name, state.whole[name]) for name in matched if name in state.whole]
        if rule.nest and reasons and not nested & {*matched} and any(why != RULED_OUT for _, why in reasons):
            name, reason = next(entry for entry in reasons if entry[1] != RULED_OUT)
            warnings.warn(f"to_nested: nest=True of the rule {pattern!r} has no effect: {name} {reason}", stacklevel=3)
        kind = rule.granularity
        known = any(bayes_of(type(m)) or isinstance(m, BayesLayer) for m in map(net.get_submodule, matched))
        if kind in ("input", "weight", "bits") and not known:
            what = type(net.get_submodule(matched[0])).__name__
            message = f"to_nested: granularity={kind!r} of the rule {pattern!r} has no effect: {matched[0]} is a {what}"
            warnings.warn(message, stacklevel=3)
        shared = [name for name in matched if name in analysis.shared]
        if rule.bayesian and shared and len(shared) == len(matched):
            message = f"to_nested: bayesian=True of the rule {pattern!r} has no effect: {shared[0]} shares its weight"
            warnings.warn(message, stacklevel=3)


def _check_unused(rules: Mapping[str, Rule], analysis: Analysis) -> None:
    """Warn of layers that did not run, since they would read what is cut as it is; not of those that rules name."""
    names = [name for name in analysis.unused if not any(_matches(name, pattern) for pattern in rules)]
    if names:
        more = ", …" if len(names) > 3 else ""
        warnings.warn(
            f"to_nested: {', '.join(names[:3])}{more} did not run on the example; where it runs, it "
            "reads channels without their masks; give an example that runs all, or a rule for it with nest=False",
            stacklevel=3,
        )


def _check_rules(model: nn.Module, rules: Mapping[str, Rule] | None) -> None:
    if rules is not None and not isinstance(rules, Mapping):
        raise ValueError(f"to_nested: rules must map name patterns to Rule; got a {type(rules).__name__}")
    layers = _nestable(model)
    for pattern, rule in (rules or {}).items():
        if not isinstance(rule, Rule):
            raise ValueError(f"to_nested: the rule of {pattern!r} must be a Rule; got {rule!r}")
        if not isinstance(rule.nest, bool | None):
            raise ValueError(
                f"to_nested: nest in the rule of {pattern!r} must be True, False or None; got {rule.nest!r}"
            )
        if rule.granularity == "bits" and rule.bayesian:
            raise ValueError(f"to_nested: the rule of {pattern!r} orders bits, of point weights; got bayesian=True")
        if not any(_matches(name, pattern) for name in layers):
            raise ValueError(
                f"to_nested: the rule {pattern!r} matches no layer of {type(model).__name__} that can be nested"
            )


def _nestable(model: nn.Module) -> list[str]:
    """Modules that make channels: of a weight of two dimensions or more."""
    return [
        name
        for name, module in model.named_modules()
        if any(x.dim() > 1 for x in module._parameters.values() if x is not None)
    ]


def _matches(name: str, pattern: str) -> bool:
    """Tell if a pattern matches a module, or one that it lies in."""
    parts = name.split(".")
    return any(fnmatch(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
