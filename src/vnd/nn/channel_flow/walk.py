"""A walk over the calls of a run: identities of parameters, and what holds where labels meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vnd.nn.dependency import NONE, Channels, step, support
from vnd.nn.recorder import Call, Recording, TracedInt, Value, values_in

MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHANNEL_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LEAVES = (*MIXING, *CHANNEL_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
MOVING = {  # functions that move entries to other places
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "T", "mT", "H", "swapaxes", "swapdims"),
    *("movedim", "moveaxis", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "view_as", "reshape_as"),
    *("getitem", "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "select", "narrow", "index_select"),
    *("roll", "flip", "repeat", "repeat_interleave", "tile", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    *("unfold", "diagonal", "adjoint", "ravel", "take_along_dim", "gather", "atleast_2d", "atleast_3d", "rot90"),
}
FACTORS = {"matmul": 0, "rmatmul": 0, "mm": 0, "bmm": 0, "einsum": 0, "addmm": 1, "baddbmm": 1}  # first one's place
RESCALING = {"batch_norm", "to", "contiguous", "float", "type_as", "detach"}
SCALING = {"mul", "rmul", "multiply", "div", "truediv", "true_divide", "divide"}


class Operand(NamedTuple):
    """One side of an operation between tensors: its shape and its labels."""

    shape: tuple[int, ...]
    labels: list[Tensor]


class Walk:
    """The state of a walk: identities that parameters have, and the ties and reasons found so far."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.model, self.recording = model, recording
        self.modules = dict(model.named_modules())
        self.channels = Channels()
        self.paths: dict[int, str] = {}  # tensors to their first names
        self.holders: dict[str, list[str]] = {}  # first name → all of them
        named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        for path, tensor in (entry for table in named for entry in table):
            first = self.paths.setdefault(id(tensor), path)
            self.holders.setdefault(first, []).append(path)
        self.weights: dict[str, list[Tensor]] = {}  # parameter → identities along each of its first two dimensions
        self.entries: dict[str, Tensor] = {}  # parameter → those of its single entries
        self.origin: dict[int, tuple[str, int]] = {}  # run of identities → the parameter and the dimension it is of
        self.by_function: set[str] = set()  # parameters that functions read
        self.left: dict[str, str] = {}  # modules that are used as they are, and why
        self.vocabularies: list[Tensor] = []  # identities of the rows of tables
        self.idle = False  # whether the output does not depend on the call under way
        self.trained = {path for path, _ in model.named_parameters(remove_duplicate=False)}

    # -- parameters ----------------------------------------------------------------------------------------------------

    def begin(self, value: Value) -> None:
        """Give a parameter its identities when it is met first: a weight along each dimension, another by entry."""
        if value.parameter is None or value.labels or value.tensor is not None:
            return
        path, shape = value.parameter, value.shape
        self.channels.shapes[path] = shape
        if path in self.trained and _is_weight(value, set()):
            self.by_function.add(path)
            value.labels = self.weight(path, shape)
        elif any(size > 1 for size in shape):
            if path not in self.entries:
                self.entries[path] = self.channels.fresh(math.prod(shape)).view(shape)
            value.labels = [self.entries[path]]

    def weight(self, path: str, shape: tuple[int, ...]) -> list[Tensor]:
        """The identities along the dimensions of a weight, each of the weight's rank."""
        if path not in self.weights:
            self.weights[path] = []
            self.channels.shapes[path] = shape
            for dim, size in enumerate(shape[:2] if len(shape) > 3 else shape):
                if size > 1:
                    self.begin_side(path, dim, size, len(shape))
        return list(self.weights[path])

    def begin_side(self, path: str, dim: int, size: int, rank: int) -> Tensor:
        """New identities along a dimension of a weight, (size,)."""
        identities = self.channels.fresh(size)
        self.origin[len(self.channels.starts) - 1] = path, dim
        self.weights[path].append(stretch(identities, dim, rank))
        return identities

    def side(self, path: str, shape: tuple[int, ...], dim: int) -> Tensor:
        """The identities along a dimension of a weight, (size,)."""
        for identities in self.weight(path, shape):
            if identities.size(dim) > 1:
                return identities.flatten()
        return self.begin_side(path, dim, 1, len(shape))

    def made_by(self, identities: Tensor, name: str, table: bool = False) -> None:
        """Note that a layer makes these channels; those of no name stay whole."""
        if not name:
            return self.channels.keep_whole(identities, "is made by no layer")
        for run in sorted({self.channels.maker(int(i)) for i in identities[[0, -1]] if i != NONE}):
            if name not in self.channels.makers[run]:
                self.channels.makers[run] += (name,)
            if table:
                self.channels.tables.add(run)

    def origin_of(self, identities: Tensor) -> tuple[str, int] | None:
        """The parameter and dimension that identities are of."""
        some = identities[identities != NONE].flatten()
        return self.origin.get(self.channels.maker(int(some[0]))) if len(some) else None

    # -- what stays whole ----------------------------------------------------------------------------------------------

    def whole(self, value: Value, reason: str) -> None:
        """Keep all channels of a value."""
        for identities in value.labels:
            self.channels.keep_whole(identities, reason)

    def give_up(self, call: Call, reason: str | None = None) -> None:
        """Keep all that a call reads, and the modules whose weights it uses."""
        for value in call.inputs:
            self.whole(value, reason or entering(call))
            if value.parameter is not None and len(value.shape) > 1 and call.scope:
                self.left[call.scope] = f"{_article(type(self.modules[call.scope]).__name__)}, which is used as it is"

    def collapse(self, identities: Tensor, dims: Iterable[int], reason: str) -> Tensor:
        """Tie all that lies along some dimensions; if nothing is left apart, it stays whole."""
        for dim in dims:
            if identities.size(dim) > 1:
                first = identities.narrow(dim, 0, 1)
                self.channels.tie(identities, first, reason=reason)
                identities = identities.amax(dim, keepdim=True) if bool((first == NONE).any()) else first
        if not support(identities):
            self.channels.keep_whole(identities, reason)
        return identities

    def outermost(self, identities: Tensor, reason: str) -> Tensor:
        """Keep apart what lies along the dimension of the largest step only, as heads do and not their entries."""
        dims = sorted(support(identities), key=lambda d: -step(identities, d))
        return self.collapse(identities, dims[1:], reason)

    def channel(self, value: Value, dim: int, reason: str, inner: bool = False) -> Tensor | None:
        """The identities along a dimension, apart from all others, (size,); None if there are none.

        Where they run over several dimensions, those along the others are tied; with `inner`, those along this one if
        it is not the outer one.
        """
        for index, identities in enumerate(value.labels):
            if identities.size(dim) > 1:
                others = [d for d in support(identities) if d != dim]
                if inner and others and outer(identities) != dim:
                    value.labels[index] = self.collapse(identities, [dim], reason)
                    return None
                value.labels[index] = kept = self.collapse(identities, others, reason)
                return kept.flatten()
        return None

    def keep_positions(self, value: Value, dims: Collection[int], reason: str) -> None:
        """Keep apart nothing that lies along these dimensions."""
        kept = [self.collapse(x, [d for d in support(x) if d in dims], reason) for x in value.labels]
        value.labels = [x for x in kept if support(x)]

    # -- what meets ----------------------------------------------------------------------------------------------------

    def join(self, output: Value, operands: Iterable[Operand], call: Call, residual: bool = False) -> None:
        """Tie the labels of operands where they run over the same dimensions of the output.

        Where one runs over channels and another has entries that are no channels, all of them are tied.
        """
        rank = len(output.shape)
        sides = [
            Operand((*[1] * (rank - len(shape)), *shape), [lift(x, rank) for x in labels]) for shape, labels in operands
        ]
        made: list[Tensor] = []
        reason = f"meets a tensor whose channels are not those of a layer, {call.where}"
        for side in sides:
            for identities in side.labels:
                for other in sides:
                    if other is not side:
                        covered = {d for x in other.labels for d in support(x)}
                        bare = [d for d in support(identities) if other.shape[d] > 1 and d not in covered]
                        if bare:
                            identities = self.collapse(identities, bare, reason)
                if support(identities):
                    self.fit(identities, made, residual, reason)
        layers = [x for x in made if not self.is_free(x)]
        output.labels = layers or made  # entries of parameters that lie along other dimensions are not cut

    def is_free(self, identities: Tensor) -> bool:
        """Tell if no layer makes any of these: entries of parameters, and of what is computed from them."""
        found = identities[identities != NONE]
        return not any(self.channels.makers[self.channels.maker(int(i))] for i in (*found[:1], *found[-1:]))

    def fit(self, mine: Tensor, made: list[Tensor], residual: bool, reason: str) -> None:
        """Tie identities to those of the same dimensions that are there already, or put them beside those.

        Of two that run over different dimensions the wider one is narrowed to the other's, or both to their outermost
        dimension; a parameter that lies along an inner dimension alone is left out.
        """
        loose = self.is_free(mine)
        for index, theirs in enumerate(made):
            ours, others, free = set(support(mine)), set(support(theirs)), self.is_free(theirs)
            if not ours & others:
                continue
            if ours != others:
                if loose and others < ours:
                    mine = self.collapse(mine, sorted(ours - others), reason)
                elif free and ours < others:
                    theirs = self.collapse(theirs, sorted(others - ours), reason)
                elif loose and ours < others and outer(theirs) not in ours:
                    made[index] = self.outermost(theirs, reason)
                    return
                elif free and others < ours and outer(mine) not in others:
                    made[index] = self.outermost(mine, reason)
                    return
                else:
                    mine, theirs = self.outermost(mine, reason), self.outermost(theirs, reason)
                made[index] = theirs
                if support(mine) != support(theirs):
                    if set(support(mine)) & set(support(theirs)):
                        self.channels.keep_whole(mine, reason)
                        self.channels.keep_whole(theirs, reason)
                        return
                    continue
            self.channels.tie(theirs, mine, residual and not (loose or free), reason=reason)
            if free:
                made[index] = mine
            return
        if support(mine):
            made.append(mine)


def operand(value: Value) -> Operand:
    """A value as a side of an operation."""
    return Operand(value.shape, value.labels)


def along(value: Any, dim: int, rank: int) -> list[Operand]:
    """A vector of parameters that meets the channels at a dimension of another tensor, if there is one."""
    if not isinstance(value, Value):
        return []
    shape = tuple(math.prod(value.shape) if d == dim % rank else 1 for d in range(rank))
    return [Operand(shape, [stretch(x.flatten(), dim, rank) for x in value.labels])]


def _is_weight(value: Value, seen: set[int]) -> bool:
    """Tell if a parameter ends up, moved about or rescaled, as the weight of a contraction."""
    for call in value.users:
        if call.module is not None or id(call) in seen:
            continue
        seen.add(id(call))
        name, args = call.name, [*call.args, *call.kwargs.values()]
        if name in ("linear", "embedding", "bilinear") or name.startswith("conv"):
            if any(arg is value for arg in (*call.args[1:2], call.kwargs.get("weight"))):
                return True
        elif name in FACTORS and any(v is value for v in values_in(call.args[FACTORS[name] :])):
            return True
        moved = name in MOVING | RESCALING and args[0] is value
        scaled = name in SCALING and len(value.shape) > 1 and all(v.shape == value.shape for v in call.outputs)
        if (moved or scaled) and any(_is_weight(v, seen) for v in call.outputs):
            return True
    return False


def of_parameters(value: Value) -> bool:
    """Tell if a value is a parameter, or is made of parameters alone."""
    if value.call is None:
        return value.parameter is not None
    return value.call.module is None and bool(value.call.inputs) and all(map(of_parameters, value.call.inputs))


def is_leaf(path: str, module: nn.Module) -> bool:
    """Tell if a module is one of torch's layers, or inherits all that it does from one."""
    kind = plain_kind(module)
    if kind is None or torch.nn.utils.parametrize.is_parametrized(module):
        return False
    return kind in CHANNEL_NORMS or "weight" in module._parameters


def plain_kind(module: nn.Module) -> type[nn.Module] | None:
    """The layer of torch's that a module is, or whose forward pass it inherits as it is."""
    for kind in LEAVES:
        if isinstance(module, kind):
            same = all(
                getattr(type(module), name, None) is getattr(kind, name, None)
                for name in ("forward", "_conv_forward", "__getattr__", "__call__")
            )
            return kind if same and "forward" not in vars(module) else None
    return None


def labeled(call: Call) -> Value:
    """The first input of a call that has labels."""
    return next(value for value in call.inputs if value.labels)


def entering(call: Call, how: str = "") -> str:
    """The reason "enters softmax over its channels, file, line"."""
    return f"enters {call.name}{how}, {call.where}"


def outer(identities: Tensor) -> int:
    """The dimension of the largest step."""
    return max(support(identities), key=lambda d: step(identities, d))


def stretch(identities: Tensor, dim: int, rank: int) -> Tensor:
    """Identities (size,) along a dimension of a value."""
    shape = [1] * rank
    shape[dim] = -1
    return identities.view(shape)


def lift(identities: Tensor, rank: int) -> Tensor:
    """Identities of a value of fewer dimensions, aligned as broadcasting does."""
    return identities.view([1] * (rank - identities.dim()) + list(identities.shape))


def compress(identities: Tensor) -> Tensor:
    """Size 1 along the dimensions that identities do not change along."""
    for dim in support(identities):
        first = identities.narrow(dim, 0, 1)
        if bool((identities == first).all()):
            identities = first
    return identities.contiguous()


def filled(x: Any, fill: Callable[[Value], Any]) -> Any:
    """Nested arguments with `fill` of each value in its place."""
    if isinstance(x, Value):
        return fill(x)
    if isinstance(x, (list, tuple)):
        items = [filled(item, fill) for item in x]
        return items if isinstance(x, list) else tuple(items)
    if isinstance(x, dict):
        return {key: filled(item, fill) for key, item in x.items()}
    if isinstance(x, slice):
        return slice(filled(x.start, fill), filled(x.stop, fill), filled(x.step, fill))
    return int(x) if isinstance(x, TracedInt) else x


def _article(word: str) -> str:
    """A word with its article."""
    spelled = word[:2].isupper()
    return f"{'an' if word[0] in ('AEFHILMNORSX' if spelled else 'AEIOU') else 'a'} {word}"
