"""Layers and contractions with weights: they read channels, and make new ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vnd.nn.channel_flow.statistics import Statistics
from vnd.nn.channel_flow.walk import (
    MIXING,
    Operand,
    along,
    entering,
    of_parameters,
    operand,
    plain_kind,
    stretch,
)
from vnd.nn.dependency import SizeUse, support
from vnd.nn.recorder import Call, Value

LETTERS = "abcdefghijklmnopqrstuvw"


class Term(NamedTuple):
    """A factor of a contraction: a tensor, a letter for each of its dimensions, and whether it is a weight."""

    value: Value
    letters: str
    weight: bool

    def over(self, identities: Tensor) -> list[str]:
        """The letters that identities run over."""
        return [self.letters[dim] for dim in support(identities)]

    def onto(self, identities: Tensor, out: str) -> Tensor:
        """Identities of what is left after the sum, with the dimensions of the output."""
        first = [self.letters.index(c) for c in out if c in self.letters]
        order = [*first, *(d for d in range(identities.dim()) if d not in first)]
        sizes = [identities.size(self.letters.index(c)) if c in self.letters else 1 for c in out]
        return identities.permute(order).reshape(sizes)

    def reads(self, summed: list[str], others: list[str]) -> bool:
        """Tell if it is a weight that reads channels along one letter, and has nothing to do with the other ones."""
        return self.weight and len(summed) == 1 and summed[0] in self.letters and not set(others) & set(self.letters)


class Layers(Statistics):
    """Rules for what contracts channels with a weight."""

    # -- modules -------------------------------------------------------------------------------------------------------

    def visit_module(self, call: Call, module: nn.Module) -> None:
        """One of torch's own layers."""
        if len(call.inputs) != 1 or not call.outputs:
            self.give_up(call, f"{call.scope} has inputs that are not one tensor")
        elif plain_kind(module) in MIXING:
            self.layer(call, module, call.scope)
        else:
            self.norm_module(call, module, call.scope)

    def layer(self, call: Call, module: Any, path: str) -> None:
        """A linear layer or convolution: y = W x reads channels by one side of W and makes them by the other."""
        weight, shape = self.paths[id(module.weight)], tuple(module.weight.shape)
        transposed, groups, source = getattr(module, "transposed", False), getattr(module, "groups", 1), call.inputs[0]
        rank = len(source.shape)
        dim = rank - 1
        if not isinstance(module, nn.Linear):
            dim = 1 if rank == len(shape) else 0
            self.keep_positions(source, range(dim + 1, rank), f"enters {path} as positions")
        incoming = self.channel(source, dim, f"enters {path}")
        if 1 < groups == source.shape[dim]:  # depthwise: the channels go on as they are
            made = None if incoming is None else incoming.repeat_interleave(module.out_channels // groups)
            if self.shares(path):
                self.channels.keep_whole(made, self.apart(path))
        elif groups > 1:
            made = self.outputs_of(path, module.out_channels) if transposed else self.side(weight, shape, 0)
            self.made_by(made, path)
            for identities in (incoming, made):
                if identities is not None:
                    self.channels.tiled.append((path, identities, groups))
                    if self.shares(path):
                        self.channels.keep_whole(identities, self.apart(path))
        else:
            reads, made = (self.side(weight, shape, side) for side in ((0, 1) if transposed else (1, 0)))
            self.made_by(made, path)
            if incoming is None:
                self.channels.keep_whole(reads, self.apart(path))
            else:
                self.channels.tie(incoming, reads, reason=f"{path} shares its weight, or is used, with other inputs")
        self.note(path, incoming, made)
        rest = [x for x in source.labels if x.size(dim) == 1]
        call.outputs[0].labels = rest if made is None else [*rest, stretch(made, dim, rank)]

    def outputs_of(self, path: str, size: int) -> Tensor:
        """The identities of outputs that are no whole dimension of the weight, as in groups of a transposed one."""
        return self.weights.setdefault(f"{path} (outputs)", [self.channels.fresh(size)])[0]

    def shares(self, path: str) -> list[str]:
        """Other layers that have a layer's weight."""
        holders = self.holders[self.paths[id(self.modules[path].weight)]]
        return [name.rpartition(".")[0] for name in holders if name != f"{path}.weight"]

    def apart(self, path: str) -> str:
        """The reason why a layer that reads channels of no layer keeps others whole."""
        others = self.shares(path)
        return f"{others[0]} shares a tensor with {path}, which is not cut alike" if others else f"enters {path}"

    # -- functions -----------------------------------------------------------------------------------------------------

    def visit_linear(self, call: Call) -> None:
        """F.linear: y = x Wᵀ + b."""
        source, weight = call.argument(0, "input"), call.argument(1, "weight")
        batch = LETTERS[: len(source.shape) - 1]
        makes = "z" * (len(weight.shape) - 1)
        self.contract(call, [source, weight], [f"{batch}y", f"{makes}y"], batch + makes)
        self.add(call, along(call.argument(2, "bias"), -1, len(call.outputs[0].shape)))

    def visit_addmm(self, call: Call) -> None:
        """torch.addmm: y = b + x W."""
        self.contract(call, [call.argument(1, "mat1"), call.argument(2, "mat2")], ["xy", "yz"], "xz")
        self.add(call, [operand(call.args[0])])

    def visit_baddbmm(self, call: Call) -> None:
        """torch.baddbmm: y = b + x W, batched."""
        self.contract(call, [call.argument(1, "batch1"), call.argument(2, "batch2")], ["bxy", "byz"], "bxz")
        self.add(call, [operand(call.args[0])])

    def add(self, call: Call, terms: list[Operand]) -> None:
        """Join the output with a bias."""
        output = call.outputs[0]
        self.join(output, [operand(output), *terms], call)

    def visit_matmul(self, call: Call) -> None:
        """Matrix products, batched: Σ_y a[…xy] b[…yz]."""
        a, b = call.inputs if call.name != "rmatmul" else call.inputs[::-1]
        ranks = len(a.shape), len(b.shape)
        batch = LETTERS[: max(*ranks, 2) - 2]
        left = "y" if ranks[0] == 1 else f"{batch[len(batch) - ranks[0] + 2 :]}xy"
        right = "y" if ranks[1] == 1 else f"{batch[len(batch) - ranks[1] + 2 :]}yz"
        out = batch + ("" if ranks[0] == 1 else "x") + ("" if ranks[1] == 1 else "z")
        self.contract(call, [a, b], [left, right], out)

    visit_rmatmul = visit_bmm = visit_mm = visit_mv = visit_dot = visit_matmul

    def visit_einsum(self, call: Call) -> None:
        """torch.einsum of one or two tensors, with an explicit or implicit output, without ellipses."""
        equation, operands = call.args[0], call.inputs
        if not isinstance(equation, str) or "." in equation or len(operands) > 2:
            return self.give_up(call)
        left, _, out = equation.replace(" ", "").partition("->")
        if "->" not in equation:
            out = "".join(sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1))
        self.contract(call, operands, left.split(","), out)

    def visit_embedding(self, call: Call) -> None:
        """F.embedding: rows of a table, which stay; its columns are channels that it makes."""
        table = next((v for v in call.inputs if v.labels and len(v.shape) == 2), None)
        if table is None or call.argument(3, "max_norm") is not None:
            return self.give_up(call)
        output = call.outputs[0]
        for identities in table.labels:
            if identities.size(1) > 1:
                self.made_by(identities.flatten(), self.owner(identities, call), table=True)
                output.labels = [stretch(identities.flatten(), len(output.shape) - 1, len(output.shape))]
            else:
                self.vocabularies.append(identities)

    def visit_conv(self, call: Call) -> None:
        """F.conv1d to conv3d and their transposed forms: as `layer`, with a weight that anything may have made.

        A depthwise one takes its channels on; in one of groups each group is cut alike.
        """
        source, weight, given = call.argument(0, "input"), call.argument(1, "weight"), call.argument(6, "groups", 1)
        groups = int(given)
        rank, dim = len(source.shape), 1 if len(source.shape) == len(weight.shape) else 0
        self.keep_positions(source, range(dim + 1, rank), entering(call, " as positions"))
        incoming = self.channel(source, dim, entering(call))
        transposed = "transpose" in call.name
        makes, reads = (1, 0) if transposed else (0, 1)
        sides: dict[int, list[Tensor]] = {0: [], 1: []}
        for x in weight.labels:
            if support(x) in ((0,), (1,)):
                sides[support(x)[0]].append(x)
            else:
                self.channels.keep_whole(x, entering(call, " as positions"))
        made = sides[makes][0].flatten() if sides[makes] else None
        if 1 < groups == source.shape[dim] and not transposed:
            filters, made = made, None
            if incoming is not None:
                made = incoming.repeat_interleave(call.outputs[0].shape[dim] // groups)
            if filters is not None and made is not None and incoming is not None:
                self.channels.tie(filters, made)
                self.channels.sizes.append(SizeUse(given, incoming, 0, call.where))
            else:
                self.channels.keep_whole(filters, entering(call))
        else:
            if groups > 1:
                for x in (incoming, None if transposed else made):
                    if x is not None:
                        self.channels.tie(x.view(groups, -1), x.view(groups, -1)[:1])
                if transposed:
                    self.channels.keep_whole(made, entering(call, " in groups"))
                else:
                    sides[reads] = [x.flatten().repeat(groups) for x in sides[reads]]
            self.read(incoming, sides[reads], call)
            if made is not None:
                self.made_by(made, self.owner(made, call))
        rest = [x for x in source.labels if x.size(dim) == 1]
        call.outputs[0].labels = rest if made is None else [*rest, stretch(made, dim, rank)]
        self.add(call, along(call.argument(2, "bias"), dim, rank))

    visit_conv1d = visit_conv2d = visit_conv3d = visit_conv
    visit_conv_transpose1d = visit_conv_transpose2d = visit_conv_transpose3d = visit_conv

    def visit_scaled_dot_product_attention(self, call: Call) -> None:
        """Attention: softmax(q kᵀ) v, in which heads are apart; their entries and the positions are tied."""
        names = ("query", "key", "value", "attn_mask")
        sides = []
        heads = call.argument(0, "query").shape[:-2]
        for value in (call.argument(place, name) for place, name in enumerate(names)):
            if isinstance(value, Value):
                last = len(value.shape) - 2
                reason = f"attends, {call.where}"
                kept = [self.collapse(x, [d for d in support(x) if d >= last], reason) for x in value.labels]
                shape = value.shape[:-2]
                if shape and 1 < shape[-1] < heads[-1]:  # each of its heads answers several queries'
                    kept = [x.repeat_interleave(heads[-1] // shape[-1], -3) if x.size(-3) > 1 else x for x in kept]
                    shape = heads
                sides.append(Operand((*shape, 1, 1), [x for x in kept if support(x)]))
        self.join(call.outputs[0], sides, call)

    def visit_prelu(self, call: Call) -> None:
        """A slope for each channel, or one for all."""
        source = call.argument(0, "input")
        slopes = along(call.argument(1, "weight"), 1, len(source.shape))
        self.join(call.outputs[0], [operand(source), *slopes], call)

    # -- contractions --------------------------------------------------------------------------------------------------

    def contract(self, call: Call, operands: list[Value], letters: list[str], out: str) -> None:
        """A sum of products over the letters that the output does not have.

        A letter that runs over a weight's own channels is read; between two activations what is summed over is tied.
        """
        if any(len(set(term)) < len(term) for term in letters):
            return self.give_up(call)
        weights = [self.is_weight(value) for value in operands]
        terms = [Term(*each) for each in zip(operands, letters, [w and not all(weights) for w in weights], strict=True)]
        summed = {c for term in letters for c in term} - set(out)
        sides = []
        for term, other in zip(terms, terms[::-1], strict=True):
            kept = [x for x in self.summed_over(call, term, other if len(terms) > 1 else None, summed) if support(x)]
            shape = tuple(term.value.shape[term.letters.index(c)] if c in term.letters else 1 for c in out)
            sides.append(Operand(shape, [term.onto(x, out) for x in kept]))
        for term, other in zip(terms, terms[::-1], strict=True):
            if term.weight:
                self.make(call, term, other, summed)
        self.join(call.outputs[0], sides, call)

    def summed_over(self, call: Call, term: Term, other: Term | None, summed: set[str]) -> list[Tensor]:
        """Labels of a factor after the sum; those along summed letters are read by a weight, or tied."""
        kept = []
        for x in term.value.labels:
            letters = term.over(x)
            within = [c for c in letters if c in summed]
            rest = [c for c in letters if c not in summed]
            if not within:
                kept.append(x)
            elif term.weight:
                continue  # what it reads is tied from the other side
            elif other is not None and other.reads(within, rest):
                at = other.letters.index(within[0])
                channels = self.collapse(x, [term.letters.index(c) for c in rest], f"enters {call.name}")
                self.read(channels.flatten(), [y for y in other.value.labels if support(y) == (at,)], call)
            else:
                dims = [term.letters.index(c) for c in within]
                kept.append(self.collapse(x, dims, f"is summed over, {call.where}"))
        return kept

    def make(self, call: Call, weight: Term, other: Term, summed: set[str]) -> None:
        """Note the channels that a weight makes; what it reads of no layer stays whole."""
        for x in weight.value.labels:
            letters = set(weight.over(x))
            if letters & summed:
                if not any(letters & set(other.over(y)) for y in other.value.labels):
                    self.channels.keep_whole(x, f"reads channels of no layer, {call.where}")
            elif not letters & set(other.letters):
                self.made_by(x.flatten(), self.owner(x, call))

    def read(self, incoming: Tensor | None, weight: list[Tensor], call: Call) -> None:
        """Tie the channels that are read to the entries of a weight that read them."""
        for identities in weight:
            if incoming is None:
                self.channels.keep_whole(identities, f"reads channels of no layer, {call.where}")
            else:
                self.channels.tie(incoming, identities.flatten(), reason=entering(call))
                if (origin := self.origin_of(identities)) is not None:
                    self.channels.read[origin[0]] = origin[1]
        if not weight:
            self.channels.keep_whole(incoming, entering(call, " with a weight that is not cut alike"))

    def owner(self, identities: Tensor, call: Call) -> str:
        """The module that holds the weight which makes channels."""
        origin = self.origin_of(identities)
        held = (path for path, entries in self.entries.items() if bool(torch.isin(identities, entries).any()))
        path = origin[0] if origin else next(held, "")
        return path.rpartition(".")[0].partition(".parametrizations")[0] or path or call.scope

    def is_weight(self, value: Value) -> bool:
        """Tell if a value is a parameter's, moved about or not."""
        return any(self.origin_of(x) is not None for x in value.labels) and of_parameters(value)
