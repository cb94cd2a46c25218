"""Dependencies between the channels of a network: which of them can only be dropped together.

Every output channel of a layer that mixes channels has an identity, and so has every entry of a parameter that meets
them. As `channel_flow` follows identities through a recorded run, it ties some of them to each other: an addition those
of its two sides, a product of queries and keys all channels of a head. What is tied forms an *atom*. Atoms that the
same layers make and read form a group, which one ordering unit orders. Where identities reach something that is not
known, or the network's output, they must stay whole, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from itertools import count as numbers
from typing import Any

import torch
from torch import Tensor

from vnd.nn.recorder import TracedInt, Value

NONE = -1  # no identity: what cannot be dropped
Table = dict[str, Tensor | None]  # a layer's name → the identities along its channels, (channels,)
Attribute = tuple[str, str, int | None]  # path of a module, name of an attribute, place in it if it is a tuple


@dataclass(frozen=True)
class Segment:
    """A run of channels: those of a unit, in an order, each repeated; or `channels` that belong to no unit.

    Args:
        unit: The unit's name, or None.
        channels: How many channels of it there are.
        repeat: How often each stands there, one after the other.
        order: Which of the unit's channels they are; None for the first ones in their order.
    """

    unit: str | None
    channels: int
    repeat: int = 1
    order: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of places."""
        return self.channels * self.repeat

    @property
    def places(self) -> Tensor:
        """The unit's channel at each place, (size,)."""
        own = torch.arange(self.channels) if self.order is None else torch.tensor(self.order)
        return own.repeat_interleave(self.repeat)

    def spread(self, values: Tensor, order: Tensor | None = None) -> Tensor:
        """Take the values of the unit's channels, along the last dimension, to the places; `order` is its own."""
        if self.order is not None:
            values = values[..., torch.tensor(self.order, device=values.device) if order is None else order]
        elif self.channels < values.size(-1):
            values = values[..., : self.channels]
        return values if self.repeat == 1 else values.repeat_interleave(self.repeat, -1)

    def shortened(self, kept: Tensor) -> Segment:
        """The segment where a unit has no other channels than these, in their order."""
        new = {int(channel): index for index, channel in enumerate(kept)}
        order = tuple(new[int(c)] for c in self.places[:: self.repeat] if int(c) in new)
        return Segment(self.unit, len(order), self.repeat, None if order == tuple(range(len(order))) else order)


Layout = tuple[Segment, ...]


@dataclass
class Group:
    """Channels that one unit orders.

    Args:
        name: The unit's name.
        producers: The layers that make them.
        channels: How many atoms there are.
        tiles: Into how many blocks they are parted, in each of which the order is nested.
        residual: Whether an addition ties layers, as in a residual stream.
    """

    name: str
    producers: list[str]
    channels: int
    tiles: int = 1
    residual: bool = False


@dataclass(frozen=True)
class Reduction:
    """A statistic over channels that a module takes by a function: its name, the dimension from the end, its size."""

    function: str
    dim: int
    size: int
    layout: Layout


@dataclass
class Analysis:
    """Groups that `analyze` found, how each layer's channels are made of them, and what must stay whole."""

    groups: dict[str, Group] = field(default_factory=dict)
    inputs: dict[str, Layout] = field(default_factory=dict)
    outputs: dict[str, Layout] = field(default_factory=dict)
    parameters: dict[str, tuple[Layout | None, ...]] = field(default_factory=dict)
    masked: dict[str, int] = field(default_factory=dict)  # parameter → the dimension of it that reads channels
    attributes: dict[Attribute, tuple[Layout, int, int]] = field(default_factory=dict)  # layout, its size, the value
    reductions: dict[str, tuple[Reduction, ...]] = field(default_factory=dict)  # by the module that calls them
    whole: dict[str, str] = field(default_factory=dict)
    first_consumers: list[str] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)  # layers whose weight is used elsewhere, too
    functional: list[str] = field(default_factory=list)  # modules whose statistics F.batch_norm is called with
    called: set[str] = field(default_factory=set)  # leaf modules that ran
    unused: list[str] = field(default_factory=list)  # layers that neither ran nor lent their weights


@dataclass(frozen=True, eq=False)
class SizeUse:
    """A size given by the code, and the identities that its dimension runs over: after slicing both must agree."""

    given: Any
    identities: Tensor
    dim: int
    where: str


@dataclass(eq=False)
class Channels:
    """Identities, what ties them, and who makes and reads them."""

    count: int = 0
    starts: list[int] = field(default_factory=list)  # of the runs of identities that were made together
    makers: list[tuple[str, ...]] = field(default_factory=list)  # of each run: layers, or none for plain parameters
    tables: set[int] = field(default_factory=set)  # runs that are looked up and not computed, as of embeddings
    ties: list[tuple[Tensor, Tensor, bool]] = field(default_factory=list)
    reasons: list[tuple[Tensor, str]] = field(default_factory=list)
    inputs: Table = field(default_factory=dict)
    outputs: Table = field(default_factory=dict)
    parameters: dict[str, list[Tensor]] = field(default_factory=dict)  # identities, each over some of its dimensions
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)  # parameter → its dimension that reads channels by a function
    tiled: list[tuple[str, Tensor, int]] = field(default_factory=list)  # who groups which channels into how many
    split: list[Tensor] = field(default_factory=list)  # identities over several dimensions
    sizes: list[SizeUse] = field(default_factory=list)
    statistics: dict[str, dict[tuple[str, int, int], Tensor]] = field(default_factory=dict)  # by module and call

    def fresh(self, count: int, makers: tuple[str, ...] = ()) -> Tensor:
        """New identities, tied to none, (count,)."""
        self.starts.append(self.count)
        self.makers.append(makers)
        self.count += count
        return torch.arange(self.count - count, self.count)

    def maker(self, identity: int) -> int:
        """The number of the run that an identity was made in."""
        return int(torch.searchsorted(torch.tensor(self.starts), identity, right=True)) - 1

    def tie(self, a: Tensor, b: Tensor, residual: bool = False, reason: str = "meets what is no channel") -> None:
        """Tie two arrays of identities, one to one; where one side has none, the other stays whole."""
        a, b = torch.broadcast_tensors(a, b)
        a, b = a.reshape(-1), b.reshape(-1)
        pairs = torch.unique(torch.stack([a, b]), dim=1) if len(a) > 1 else torch.stack([a, b])
        none = (pairs == NONE).any(0)
        self.keep_whole(pairs[:, none], reason)
        pairs = pairs[:, ~none & (pairs[0] != pairs[1])]
        if pairs.numel():
            self.ties.append((pairs[0], pairs[1], residual))

    def keep_whole(self, identities: Tensor | None, reason: str) -> None:
        """Note why these cannot be dropped; the first reason stays."""
        if identities is not None and (kept := torch.unique(identities[identities != NONE])).numel():
            self.reasons.append((kept, reason))

    # -- the conclusion ------------------------------------------------------------------------------------------------

    def conclude(self) -> Analysis:
        """Turn identities into groups of layers, and every layer's channels into segments of groups."""
        broken: dict[int, str] = {}  # an identity of what must stay whole, found on the way
        while True:
            roots = self._rectangular()
            solution = _Solution(self, roots, broken)
            found = solution.conflicts()
            if not found and not solution.tied:
                return solution.analysis()
            broken |= found

    def _rectangular(self) -> Tensor:
        """The atom of each identity, once those over several dimensions can be dropped along one of them only."""
        made = torch.zeros(self.count + 1, dtype=torch.bool)
        for start, end, makers in zip(self.starts, [*self.starts[1:], self.count], self.makers, strict=False):
            made[start:end] = bool(makers)
        split = [identities for identities in self.split if bool(made[identities].any())]
        for identities in split:
            if bool((identities == NONE).any()):
                self.keep_whole(identities, "is parted together with what is no channel")
        split = [identities for identities in split if not bool((identities == NONE).any())]
        while True:
            roots, changed = _components(self.count, self.ties), False
            for identities in split:
                atoms = roots[identities]
                varied = [d for d in range(atoms.dim()) if bool((atoms != atoms.narrow(d, 0, 1)).any())]
                for dim in sorted(varied, key=lambda d: -step(identities, d))[:-1]:
                    self.tie(identities, identities.narrow(dim, 0, 1))
                    changed = True
            if not changed:
                return roots


def step(identities: Tensor, dim: int) -> int:
    """Stride of identities along a dimension: of several that they run over the outer one has the largest."""
    if identities.size(dim) < 2:
        return 0
    return int(identities.diff(dim=dim).abs().max())


def _look_up(table: Tensor, identities: Tensor) -> Tensor:
    """Entries of a table for identities, NONE for none."""
    return torch.where(identities == NONE, NONE, table[identities.clamp(min=0)])


def _components(count: int, ties: Iterable[tuple[Tensor, Tensor, bool]]) -> Tensor:
    """The smallest identity that each one is tied to, directly or not, (count,)."""
    roots = torch.arange(count)
    pairs = [torch.stack([a, b]) for a, b, _ in ties]
    if not pairs:
        return roots
    left, right = torch.cat(pairs, 1)
    while True:
        a, b = roots[left], roots[right]
        if bool((a == b).all()):
            return roots
        least = torch.minimum(a, b)
        roots = roots.scatter_reduce(0, a, least, "amin").scatter_reduce(0, b, least, "amin")
        while bool((roots != (jumped := roots[roots])).any()):
            roots = jumped


class _Solution:
    """Groups of atoms under what is known to be broken, and a search for what else is."""

    def __init__(self, channels: Channels, roots: Tensor, broken: dict[int, str]) -> None:
        self.channels, self.roots = channels, roots
        self.tied = False  # whether the search for conflicts tied channels
        self.reasons: dict[int, str] = {}
        for identities, reason in channels.reasons:
            for root in torch.unique(roots[identities]).tolist():
                self.reasons.setdefault(root, reason)
        for identity, reason in broken.items():
            self.reasons.setdefault(int(roots[identity]), reason)
        self.made = torch.zeros(channels.count, dtype=torch.bool)  # whether a layer makes one of an atom
        self.runs: dict[int, list[int]] = {}  # run of identities → its atoms, in order
        for number, (start, makers) in enumerate(zip(channels.starts, channels.makers, strict=True)):
            if makers:
                end = channels.starts[number + 1] if number + 1 < len(channels.starts) else channels.count
                self.made[roots[start:end]] = True
                self.runs[number] = roots[start:end].tolist()
        self.uses = list(self._uses())
        self.groups: dict[str, Group] = {}
        self.atoms: dict[str, list[int]] = {}
        self.unit = torch.full((channels.count,), NONE)  # atom → number of its group
        self.place = torch.full((channels.count,), NONE)  # atom → its channel in the group
        self.names: list[str] = []
        self.attributes: dict[Attribute, tuple[Tensor, int]] = {}  # atoms whose number it follows, and its value
        self._form_groups()

    def _uses(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that has channels along one dimension: sides of layers, dimensions of parameters."""
        for side, table in (("in", self.channels.inputs), ("out", self.channels.outputs)):
            for name, identities in table.items():
                if identities is not None:
                    yield f"{side} {name}", self.atoms_of(identities)
        for name, layers in self.channels.parameters.items():
            for dim, atoms in self.along(name, layers).items():
                yield f"{dim} {name}", atoms

    def along(self, name: str, layers: list[Tensor]) -> dict[int, Tensor]:
        """The atoms along each dimension of a parameter that they run over, NONE for what no layer makes.

        Entries that met nothing may be dropped with the others; where no single dimension explains all atoms, they
        must stay whole.
        """
        found: dict[int, Tensor] = {}
        for identities in layers:
            atoms = self.atoms_of(identities)
            if not bool((atoms != NONE).any()):
                continue
            for dim in [d for d in range(atoms.dim()) if atoms.size(d) > 1]:
                flat = atoms.movedim(dim, 0).reshape(atoms.size(dim), -1)
                high = flat.max(1).values
                if bool(((flat == NONE) | (flat == high[:, None])).all()):
                    found[dim] = high
                    break
            else:
                for atom in torch.unique(atoms[atoms != NONE]).tolist():
                    self.reasons.setdefault(atom, f"{name} takes up its channels over several dimensions")
        return found

    def atoms_of(self, identities: Tensor) -> Tensor:
        """The atom at each place, NONE where no layer makes it."""
        atoms = _look_up(self.roots, identities)
        return torch.where((atoms != NONE) & self.made[atoms.clamp(min=0)], atoms, NONE)

    def _form_groups(self) -> None:
        """Atoms that the same things take up are a group, unless a reason speaks against one of them."""
        signatures: dict[int, list[int]] = {}
        for number, (_, atoms) in enumerate(self.uses):
            for atom in torch.unique(atoms).tolist():
                if atom != NONE:
                    signatures.setdefault(atom, []).append(number)
        producers: dict[int, dict[str, None]] = {}
        order: dict[int, None] = {}
        for number, run in self.runs.items():
            for atom in run:
                producers.setdefault(atom, {}).update(dict.fromkeys(self.channels.makers[number]))
                order.setdefault(atom)
        members: dict[tuple[int, ...], list[int]] = {}
        for atom in order:
            members.setdefault(tuple(signatures.get(atom, ())), []).append(atom)
        residual = self._residual()
        self.aside: list[tuple[list[str], str]] = []
        for own in members.values():
            made = list(dict.fromkeys(name for atom in own for name in producers[atom]))
            reason = next((self.reasons[atom] for atom in own if atom in self.reasons), None)
            group = Group("", made, len(own), residual=not residual.isdisjoint(own))
            reason = reason or self._tile(group, own)
            if reason is not None:
                self.aside.append((made, reason))
                continue
            names = chain(made[:1], (f"{made[0]}[{index}]" for index in numbers(2)))
            group.name = next(name for name in names if name not in self.groups)
            self.unit[own], self.place[own] = len(self.names), torch.arange(len(own))
            self.names.append(group.name)
            self.groups[group.name], self.atoms[group.name] = group, own

    def _residual(self) -> set[int]:
        """Atoms in which an addition ties different layers."""
        found: set[int] = set()
        for a, b, residual in self.channels.ties:
            runs = {self.channels.maker(int(a[0])), self.channels.maker(int(b[0]))} if residual else set()
            if len(runs) == 2 and runs <= self.runs.keys():
                tables = runs & self.channels.tables
                # A bias for each head, looked up in a table, is no stream.
                if not tables or not any(len(set(self.runs[run])) < len(self.runs[run]) for run in runs - tables):
                    found |= set(self.roots[a].tolist())
        return found

    def _tile(self, group: Group, atoms: list[int]) -> str | None:
        """Nest inside each group of a grouped convolution or GroupNorm; a reason if that cannot be."""
        own = torch.tensor(atoms)
        for name, identities, tiles in self.channels.tiled:
            found = self.atoms_of(identities)
            if not bool(torch.isin(found, own).any()):
                continue
            if len(found) % len(own) or not torch.equal(found, own.repeat_interleave(len(found) // len(own))):
                return f"{name} groups its channels together with others"
            if tiles % group.tiles and group.tiles % tiles:
                return f"{name} groups its channels into {tiles}, another layer into {group.tiles}"
            group.tiles = max(group.tiles, tiles)
        if len(own) == 1:
            return "all its channels are tied to each other"
        return None if group.channels > group.tiles else "each of its groups has a single channel"

    # -- sizes that the code gives -------------------------------------------------------------------------------------

    def conflicts(self) -> dict[int, str]:
        """Identities of groups that code would not find as large as they are, with the reason."""
        everywhere = [self._kept(count) for count in (lambda n: 1, lambda n: max(1, n // 2), lambda n: max(1, n - 1))]
        uses = sorted(self.channels.sizes, key=lambda use: len(_attributes(use.given)))
        found: dict[int, str] = {}
        for use in uses:
            atoms, leaves = self.cut_along(use.identities, use.dim), _attributes(use.given)
            touched = self._units(atoms)
            if touched and not isinstance(use.given, TracedInt):
                found |= self._break(touched, f"its size is written into the code, {use.where}")
            elif touched and any(self._evaluate(use.given, kept) != self._count(atoms, kept) for kept in everywhere):
                free = [leaf for leaf in leaves if leaf not in self.attributes]
                self._assign(free, use.given, atoms, everywhere)
        for use in uses:
            atoms, leaves = self.cut_along(use.identities, use.dim), _attributes(use.given)
            units = self._units(atoms)
            for leaf in leaves:
                units |= self._units(self.attributes[leaf][0]) if leaf in self.attributes else set()
            units |= {unit for source, _ in _leaf_values(use.given) for unit in self._units_of_size(source)}
            shapes = [*everywhere, *(self._kept(lambda n: 1, only=unit) for unit in units)] if units else []
            wrong = any(self._evaluate(use.given, kept) != self._count(atoms, kept) for kept in shapes)
            if wrong and not (self._tie_by_attribute(leaves, atoms) or self._tie_by_ratio(use.given)):
                found = self._break(units, f"its size follows from another one, {use.where}") | found
        return {} if self.tied else found  # which may be no conflicts any more

    def _tie_by_attribute(self, leaves: list[Attribute], atoms: Tensor) -> bool:
        """Tie channels that one attribute of a module counts, as the heads of two attentions."""
        counting = [leaf for leaf in leaves if leaf in self.attributes]
        for leaf in counting:
            if len(counting) == 1:
                others = self.attributes[leaf][0]
                if len(others) == len(atoms) and not torch.equal(others, atoms) and bool((atoms != NONE).all()):
                    self.channels.tie(others, atoms)
                    self.tied = True
                    return True
        return False

    def _tie_by_ratio(self, given: Any) -> bool:
        """Tie a size to an attribute that code divides it by, as a stream to its heads: c // h stays as it is."""
        if not isinstance(given, TracedInt) or given.source[0] != "floordiv":
            return False
        sides = given.source[1:]
        if not all(isinstance(side, TracedInt) for side in sides):
            return False
        if sides[0].source[0] != "size" or sides[1].source[1:] not in self.attributes:
            return False
        stream, heads = self.size_along(*sides[0].source[1:]), self.attributes[sides[1].source[1:]][0]
        if bool((stream == NONE).any()) or bool((heads == NONE).any()) or len(stream) % len(heads):
            return False
        wide = heads.repeat_interleave(len(stream) // len(heads))
        if torch.equal(self.roots[wide], self.roots[stream]):
            return False
        self.channels.tie(stream, wide)
        self.tied = True
        return True

    def _units(self, atoms: Tensor) -> set[int]:
        """The groups that atoms belong to."""
        return {int(unit) for unit in torch.unique(_look_up(self.unit, atoms))} - {NONE}

    def _units_of_size(self, source: tuple[Any, ...]) -> set[int]:
        return self._units(self.size_along(source[1], source[2])) if source[0] == "size" else set()

    def cut_along(self, identities: Tensor, dim: int) -> Tensor:
        """The atom at each place along a dimension, NONE where nothing is dropped along it, (size,)."""
        atoms = self.atoms_of(identities).movedim(dim, 0)
        if not bool((atoms != atoms[:1]).any()):
            return torch.full((len(atoms),), NONE)
        return atoms.reshape(len(atoms), -1).amax(1)

    def size_along(self, value: Value, dim: int) -> Tensor:
        """The atom at each place along a dimension of a value."""
        for identities in value.labels:
            if identities.size(dim) > 1:
                return self.cut_along(identities, dim)
        return torch.full((value.shape[dim],), NONE)

    def _assign(self, leaves: list[Attribute], given: TracedInt, atoms: Tensor, shapes: list[Tensor]) -> None:
        """Let an attribute of a module follow the channels, if that makes the size right."""
        for leaf in leaves:
            self.attributes[leaf] = atoms, _value_of(leaf, given)
            counts = [self._count(atoms, kept) for kept in shapes]
            if all(self.attributes[leaf][1] * count % len(atoms) == 0 for count in counts) and all(
                self._evaluate(given, kept) == count for kept, count in zip(shapes, counts, strict=True)
            ):
                return
            del self.attributes[leaf]

    def _kept(self, count: Callable[[int], int], only: int | None = None) -> Tensor:
        """Tell if each atom is kept where every group, or only one, keeps so many channels of each tile."""
        kept = torch.ones(len(self.roots) + 1, dtype=torch.bool)  # the last entry is that of NONE
        for number, (name, group) in enumerate(self.groups.items()):
            if only in (None, number):
                span = group.channels // group.tiles
                places = torch.arange(group.channels) % span
                kept[torch.tensor(self.atoms[name])] = places < count(span)
        return kept

    def _count(self, atoms: Tensor, kept: Tensor) -> int:
        return int(kept[atoms].sum())

    def _evaluate(self, given: Any, kept: Tensor) -> int:
        """A size in a sliced network."""

        def leaf(source: tuple[Any, ...]) -> int:
            if source[0] == "size":
                return self._count(self.size_along(source[1], source[2]), kept)
            value = _value_of(source[1:], given)
            if source[1:] not in self.attributes:
                return value
            atoms, _ = self.attributes[source[1:]]
            return value * self._count(atoms, kept) // len(atoms)

        return int(given.evaluate(leaf)) if isinstance(given, TracedInt) else int(given)

    def _break(self, units: set[int], reason: str) -> dict[int, str]:
        return {self.atoms[self.names[unit]][0]: reason for unit in units}

    # -- the result ----------------------------------------------------------------------------------------------------

    def analysis(self) -> Analysis:
        """Groups, layouts and reasons."""
        result = Analysis(groups=self.groups)
        for made, reason in self.aside:
            result.whole |= {name: reason for name in made if name not in result.whole}
        for group in self.groups.values():
            for name in group.producers:
                result.whole.pop(name, None)
        for table, target in ((self.channels.inputs, result.inputs), (self.channels.outputs, result.outputs)):
            for name, identities in table.items():
                layout = None if identities is None else self.layout(self.atoms_of(identities))
                if layout is not None and any(segment.unit for segment in layout):
                    target[name] = layout
        for name, layers in self.channels.parameters.items():
            layouts = {dim: self.layout(atoms) for dim, atoms in self.along(name, layers).items()}
            if any(segment.unit for layout in layouts.values() for segment in layout):
                result.parameters[name] = tuple(layouts.get(dim) for dim in range(len(self.channels.shapes[name])))
                dim = self.channels.read.get(name)
                if dim is not None and any(segment.unit for segment in layouts.get(dim, ())):
                    result.masked[name] = dim
        for leaf, (atoms, value) in self.attributes.items():
            result.attributes[leaf] = self.layout(atoms), len(atoms), value
        for name, calls in self.channels.statistics.items():
            found = [Reduction(*call, self.layout(self.atoms_of(identities))) for call, identities in calls.items()]
            if any(segment.unit for reduction in found for segment in reduction.layout):
                result.reductions[name] = tuple(found)
        return result

    def layout(self, atoms: Tensor) -> Layout:
        """Segments of a sequence of atoms."""
        units = _look_up(self.unit, atoms)
        places = _look_up(self.place, atoms)
        segments: list[Segment] = []
        ends = [*(torch.nonzero(units[1:] != units[:-1]).flatten() + 1).tolist(), len(units)]
        start = 0
        for end in ends:
            number = int(units[start])
            if number == NONE:
                segments.append(Segment(None, end - start))
            else:
                name = self.names[number]
                segments += _segments(name, self.groups[name].channels, places[start:end])
            start = end
        return tuple(segments)


def _segments(unit: str, channels: int, places: Tensor) -> Iterator[Segment]:
    """The shortest description of a run of one unit's channels: whole copies of it side by side, or an order."""
    for repeat in [r for r in range(1, len(places) // channels + 1) if len(places) % (r * channels) == 0]:
        whole = torch.arange(channels).repeat_interleave(repeat)
        if torch.equal(places, whole.repeat(len(places) // len(whole))):
            yield from [Segment(unit, channels, repeat)] * (len(places) // len(whole))
            return
    change = torch.nonzero(places[1:] != places[:-1]).flatten() + 1
    runs = torch.diff(torch.cat([torch.tensor([0]), change, torch.tensor([len(places)])]))
    repeat = int(runs[0]) if bool((runs == runs[0]).all()) else 1
    order = tuple(places[::repeat].tolist())
    yield Segment(unit, len(order), repeat, None if order == tuple(range(len(order))) else order)


def _attributes(given: Any) -> list[Attribute]:
    """Attributes of modules that a size is computed from."""
    if not isinstance(given, TracedInt):
        return []
    return list(dict.fromkeys(source[1:] for source in given.leaves() if source[0] == "attribute"))


def _value_of(leaf: Any, given: Any) -> int:
    """Value of an attribute in a size now."""
    return next(iter(found for source, found in _leaf_values(given) if source[1:] == leaf))


def _leaf_values(given: Any) -> Iterator[tuple[Any, int]]:
    if isinstance(given, TracedInt):
        if given.source[0] in ("size", "attribute"):
            yield given.source, int(given)
        else:
            for side in given.source[1:]:
                yield from _leaf_values(side)


def support(identities: Tensor) -> tuple[int, ...]:
    """The dimensions that identities run over."""
    return tuple(dim for dim, size in enumerate(identities.shape) if size > 1)
