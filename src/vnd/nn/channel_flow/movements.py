"""Movements: views, splits and their like, run on the labels themselves, and the sizes that code gives to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vnd.nn.channel_flow.walk import (
    Operand,
    Walk,
    compress,
    entering,
    filled,
    labeled,
    stretch,
)
from vnd.nn.dependency import NONE, SizeUse, support
from vnd.nn.recorder import Call, TracedInt, Value, values_in


class Movements(Walk):
    """Rules for what takes entries to other places, and puts tensors side by side."""

    def move(self, call: Call) -> None:
        """Run what only moves entries about on the labels, and note the sizes that the code gives."""
        sources = [v for v in call.inputs if v.labels]
        source = call.args[0] if call.args and isinstance(call.args[0], Value) else sources[0]
        if call.name in ("expand_as", "view_as", "reshape_as"):
            if not source.labels:  # it has the other's channels where it is only repeated
                rank = len(call.outputs[0].shape)
                own = (*[1] * (rank - len(source.shape)), *source.shape)
                repeated = [x for x in sources[0].labels if all(own[d] == 1 for d in support(x))]
                call.outputs[0].labels = repeated if call.name == "expand_as" else []
                return None
        elif len(sources) > 1 or not source.labels:
            return self.give_up(call)
        self.tie_chosen(call, source)
        for identities in source.labels:
            try:
                moved = self.replay(call, source, identities.expand(source.shape))
            except Exception:
                self.channels.keep_whole(identities, entering(call))
                continue
            for output, labels in zip(call.outputs, moved, strict=True):
                if tuple(labels.shape) != output.shape:
                    self.channels.keep_whole(identities, entering(call))
                elif not self.label(output, labels) and not self.idle:
                    single = labels.flatten()[:1]
                    if bool((single != NONE).all()) and len(torch.unique(identities)) > 1:
                        self.channels.keep_whole(single, f"a channel is taken out by {call.name}, {call.where}")
        self.note_sizes(call)

    def tie_chosen(self, call: Call, source: Value) -> None:
        """Keep nothing apart along dimensions whose entries are chosen by what the network is given."""
        rank, dims = len(source.shape), list[int]()
        if call.name == "getitem":
            index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
            for dim, item in _by_dimension(index, rank):
                if any(value.data for value in values_in(item)):
                    dims += range(dim, dim + _indexed(item))
        elif call.name in ("gather", "index_select", "take_along_dim"):
            dim = call.argument(2 if call.name == "take_along_dim" else 1, "dim")
            if any(value.data for value in call.inputs if value is not source):
                dims += range(rank) if dim is None else [int(dim) % rank]
        self.keep_positions(source, dims, f"is chosen from by {call.name}, {call.where}")

    def label(self, output: Value, labels: Tensor) -> bool:
        """Give a value labels that were moved; False if they are the same everywhere."""
        small = compress(labels)
        if support(small):
            output.labels.append(small)
            if len(support(small)) > 1:
                self.channels.split.append(small)
        return bool(support(small))

    def replay(self, call: Call, source: Value, labels: Tensor) -> list[Tensor]:
        """Call a function on labels in the place of a value."""

        def fill(value: Value) -> Any:
            if value is source:
                return labels
            return value.tensor.cpu() if value.tensor is not None else labels.new_empty(()).expand(value.shape)

        if call.name in ("view", "reshape"):
            size = _given_size(call)
            found = labels if isinstance(size[0], torch.dtype) else labels.reshape([int(n) for n in size])
        else:
            args, kwargs = filled((call.args, call.kwargs), fill)
            found = labels[args[1]] if call.name == "getitem" else call.function(*args, **kwargs)
        return [found] if isinstance(found, Tensor) else list(found)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def note_sizes(self, call: Call) -> None:
        """Sizes in the arguments of a view and its like, each with the dimension that has it."""
        name, output = call.name, call.outputs[0]
        rank = len(output.shape)
        if name in ("view", "reshape", "expand", "broadcast_to"):
            sizes = _given_size(call)
            for dim, number in enumerate(sizes, rank - len(sizes)):
                self.note_size(number, output, dim, call)
        elif name == "unflatten":
            sizes = call.argument(2, "sizes")
            for dim, number in enumerate(sizes, call.argument(1, "dim") % (rank - len(sizes) + 1)):
                self.note_size(number, output, dim, call)
        elif name in ("split", "split_with_sizes"):
            default = call.kwargs.get("split_size", call.kwargs.get("split_sizes"))
            sizes, dim = call.argument(1, "split_size_or_sections", default), call.argument(2, "dim", 0) % rank
            numbers = sizes if isinstance(sizes, (tuple, list)) else [sizes] * len(call.outputs)
            for number, part in zip(numbers, call.outputs, strict=False):
                if part.shape[dim] == int(number):
                    self.note_size(number, part, dim, call)
            if isinstance(sizes, int):
                self.tie_chunks(call)
        elif name == "chunk":
            self.tie_chunks(call)
        elif name == "getitem":
            index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
            if not any(isinstance(i, (Value, list)) for i in index):
                self.note_slices(index, call)
        elif name == "narrow":
            self.note_size(call.argument(3, "length"), output, call.argument(1, "dim") % rank, call)

    def note_size(self, number: Any, value: Value, dim: int, call: Call) -> None:
        """A size given by the code for a dimension: one that is another tensor's ties the two."""
        if not isinstance(number, int) or number == -1 or dim < 0:
            return
        along = [x for x in value.labels if x.size(dim) > 1]
        for identities in along:
            self.channels.sizes.append(SizeUse(number, identities, dim, call.where))
            if isinstance(number, TracedInt) and number.source[0] == "size":
                self.tie_sizes(identities, dim, number.source[1], number.source[2], call)
        if not along and isinstance(number, TracedInt) and value.shape[dim] > 1:
            none = stretch(torch.full((value.shape[dim],), NONE), dim, len(value.shape))
            self.channels.sizes.append(SizeUse(number, none, dim, call.where))

    def tie_sizes(self, identities: Tensor, dim: int, other: Value, axis: int, call: Call) -> None:
        """Tie channels to those of another tensor whose number the code takes for theirs."""
        theirs = next((x for x in other.labels if x.size(axis) > 1), None)
        if theirs is None or theirs.size(axis) != identities.size(dim):
            return
        same = torch.equal(theirs.flatten().sort().values, identities.flatten().sort().values)
        if len(support(theirs)) == len(support(identities)) == 1 and not same:
            reason = f"its size is that of another, {call.where}"
            self.channels.tie(identities.flatten(), theirs.flatten(), reason=reason)

    def tie_chunks(self, call: Call) -> None:
        """Parts of one size are cut alike."""
        dim = call.argument(2, "dim", 0) % len(call.outputs[0].shape)
        first, *others = call.outputs
        for part in others:
            for mine, theirs in zip(first.labels, part.labels, strict=False):
                if mine.size(dim) > 1 and mine.shape == theirs.shape:
                    self.channels.tie(mine, theirs)
                elif mine.size(dim) > 1 or theirs.size(dim) > 1:
                    for labels in (mine, theirs):
                        self.channels.keep_whole(labels, f"is split into uneven parts, {call.where}")

    def note_slices(self, index: tuple[Any, ...], call: Call) -> None:
        """Bounds of slices along channels: each is the size of the part before it, or after it if it is negative."""
        source = call.args[0]
        for dim, item in _by_dimension(index, len(source.shape)):
            for identities in source.labels:
                if isinstance(item, slice) and identities.size(dim) > 1:
                    size = source.shape[dim]
                    for bound in (item.start, item.stop):
                        if isinstance(bound, int) and 0 < (count := abs(int(bound))) < size:
                            part = identities.narrow(dim, 0 if bound > 0 else size - count, count)
                            given = bound if bound > 0 else -bound
                            self.channels.sizes.append(SizeUse(given, part, dim, call.where))

    # -- side by side --------------------------------------------------------------------------------------------------

    def visit_cat(self, call: Call) -> None:
        """Concatenation: along channels they lie side by side, along others they are tied."""
        output, rank = call.outputs[0], len(call.outputs[0].shape)
        dim = call.argument(1, "dim", call.kwargs.get("axis", 0)) % rank
        parts = [
            v for v in call.argument(0, "tensors") if isinstance(v, Value) and len(v.shape) == rank and v.shape[dim]
        ]
        over = {tuple(d for d in support(x) if d != dim) for v in parts for x in v.labels if x.size(dim) > 1}
        beside, apart = [], []  # labels along the dimension, and all others
        for value in parts:
            mine = [x for x in value.labels if x.size(dim) > 1 or support(x) in over]
            beside.append(mine[0] if mine else torch.full([1] * rank, NONE))
            rest = [x for x in value.labels if not any(x is y for y in mine)]
            apart.append(Operand((*value.shape[:dim], 1, *value.shape[dim + 1 :]), rest))
        reason = f"is concatenated along several dimensions, {call.where}"
        if len(over) > 1:
            for x in beside:
                self.channels.keep_whole(x, reason)
        elif over:
            sizes = [max(x.size(d) for x in beside) for d in range(rank)]
            wide = [
                x.expand([*sizes[:dim], value.shape[dim], *sizes[dim + 1 :]])
                for x, value in zip(beside, parts, strict=True)
            ]
            self.label(output, torch.cat(wide, dim))
        others = Value(output.shape, output.dtype)
        self.join(others, apart, call)
        taken = {d for x in output.labels for d in support(x)}
        for identities in others.labels:
            if set(support(identities)) & taken:
                self.channels.keep_whole(identities, reason)
            else:
                output.labels.append(identities)

    visit_concat = visit_concatenate = visit_cat

    def visit_stack(self, call: Call) -> None:
        """Tensors along a new dimension."""
        parts = [v for v in call.argument(0, "tensors") if isinstance(v, Value)]
        if any(len(v.labels) > 1 for v in parts):
            return self.give_up(call)
        dim = call.argument(1, "dim", 0) % len(call.outputs[0].shape)
        self.label(call.outputs[0], torch.stack([_all_labels(v) for v in parts], dim))

    def visit_setitem(self, call: Call) -> None:
        """Entries of one tensor in the place of some of another's."""
        target, index, value = call.args[:3]
        output = call.outputs[0]
        if not isinstance(value, Value) or (not value.labels and value.shape in ((), (1,))):
            output.labels = list(target.labels)
            return
        reason = f"is written into another tensor, {call.where}"
        if len(target.labels) > 1 or len(value.labels) > 1:
            return self.give_up(call, reason)
        labels = _all_labels(target).clone()
        try:
            labels[filled(index, lambda v: None if v.tensor is None else v.tensor.cpu())] = _all_labels(value)
        except Exception:
            return self.give_up(call, reason)
        self.label(output, labels)

    def visit_masked_scatter(self, call: Call) -> None:
        """Rows of one tensor in the place of some of another's: their channels are tied."""
        source, rows = call.args[0], call.args[2]
        last = len(source.shape) - 1
        mine, theirs = (self.channel(v, len(v.shape) - 1, entering(call)) for v in (source, rows))
        if mine is not None and theirs is not None:
            self.channels.tie(mine, theirs, True)
            call.outputs[0].labels = [stretch(mine, last, last + 1)]
        else:
            for identities in (mine, theirs):
                self.channels.keep_whole(identities, entering(call))

    def visit_glu(self, call: Call) -> None:
        """One half of the channels times the sigmoid of the other: both are cut alike."""
        source, output = labeled(call), call.outputs[0]
        dim = call.argument(1, "dim", -1) % len(source.shape)
        halves = [[x.chunk(2, dim)[side] if x.size(dim) > 1 else x for x in source.labels] for side in range(2)]
        self.join(output, [Operand(output.shape, half) for half in halves], call)

    # -- positions -----------------------------------------------------------------------------------------------------

    def spatial(self, call: Call) -> None:
        """Pooling and resizing: over positions, which are the last dimensions."""
        source = labeled(call)
        rank = len(source.shape)
        count = next((int(n) for n in "123" if f"{n}d" in call.name), rank - 2)
        self.keep_positions(source, range(rank - count, rank), entering(call))
        for output in call.outputs:
            if len(output.shape) == rank:
                output.labels = list(source.labels)
            else:
                self.whole(source, entering(call))

    def visit_pad(self, call: Call) -> None:
        """F.pad: along a dimension of channels it adds some that are none."""
        source, pads = call.argument(0, "input"), call.argument(1, "pad")
        rank = len(source.shape)
        padded = {rank - 1 - i // 2: (pads[i], pads[i + 1]) for i in range(0, len(pads), 2) if pads[i] or pads[i + 1]}
        for identities in source.labels:
            for dim in [d for d in support(identities) if d in padded]:
                if min(padded[dim]) < 0 or call.argument(2, "mode", "constant") != "constant":
                    identities = self.collapse(identities, [dim], entering(call))
                else:
                    shape = identities.shape
                    none = [identities.new_full((*shape[:dim], n, *shape[dim + 1 :]), NONE) for n in padded[dim]]
                    identities = torch.cat([none[0], identities, none[1]], dim)
            if support(identities):
                call.outputs[0].labels.append(identities)


def _given_size(call: Call) -> list[Any]:
    """The sizes that a view or an expansion is given, one by one or as a sequence."""
    rest = call.args[1:]
    given = rest[0] if len(rest) == 1 and not isinstance(rest[0], int) else rest
    size = call.kwargs.get("size", call.kwargs.get("shape", given))
    return list(size) if isinstance(size, (tuple, list)) else [size]


def _by_dimension(index: tuple[Any, ...], rank: int) -> Iterator[tuple[int, Any]]:
    """The items of an index, each with the dimension that it is of."""
    dim, named = 0, sum(_indexed(item) for item in index if item is not None and item is not Ellipsis)
    for item in index:
        if item is Ellipsis:
            dim += rank - named
        elif item is not None:
            yield dim, item
            dim += _indexed(item)


def _indexed(item: Any) -> int:
    """The number of dimensions that an item of an index takes."""
    return len(item.shape) if isinstance(item, Value) and item.dtype == torch.bool else 1


def _all_labels(value: Value) -> Tensor:
    """The labels of a value, of its shape; it has one array of them at most."""
    return value.labels[0].expand(value.shape) if value.labels else torch.full(value.shape, NONE)
