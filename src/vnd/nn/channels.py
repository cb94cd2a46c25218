"""Identities of channels: which are tied to which, and the groups of layers that come of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Labels = list[list[int] | None]  # one entry a dimension: the identities along it, or None if it has none


@dataclass(frozen=True)
class Segment:
    """A run of channels: all of a unit's, each repeated `repeat` times, or `channels` that belong to no unit."""

    unit: str | None
    channels: int
    repeat: int = 1


Layout = tuple[Segment, ...]


@dataclass
class Group:
    """Channels that can only be dropped together: those of one or more layers, tied one to one."""

    name: str
    producers: list[str]
    channels: int
    tiles: int = 1
    residual: bool = False


@dataclass
class Analysis:
    """What `analyse` found: the groups, how each layer's channels are made of them, and what must stay whole."""

    groups: dict[str, Group] = field(default_factory=dict)
    inputs: dict[str, Layout] = field(default_factory=dict)
    outputs: dict[str, Layout] = field(default_factory=dict)
    parameters: dict[str, tuple[Layout | None, ...]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    first_consumers: list[str] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)  # layers whose weight is used elsewhere, too
    functional: list[str] = field(default_factory=list)  # modules whose statistics F.batch_norm is called with
    called: set[str] = field(default_factory=set)  # modules that the graph calls, not those inside of them


class Identities:
    """Identities of channels in a union-find, and the layers that make, read or hand them on."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.reasons: dict[int, str] = {}  # identity → why it must stay whole
        self.residual: set[int] = set()
        self.producers: dict[str, list[int]] = {}
        self.inputs: dict[str, list[int] | None] = {}
        self.outputs: dict[str, list[int] | None] = {}
        self.parameters: dict[str, Labels] = {}
        self.tiled: list[tuple[str, list[int], int]] = []  # who groups which channels into how many blocks
        self.left: dict[str, str] = {}  # modules with parameters that are not looked into

    def fresh(self, count: int) -> list[int]:
        """New identities, tied to none."""
        start = len(self.parent)
        self.parent += range(start, start + count)
        return list(range(start, start + count))

    def find(self, identity: int) -> int:
        """The one that stands for all that this identity is tied to."""
        while self.parent[identity] != identity:
            self.parent[identity] = self.parent[self.parent[identity]]
            identity = self.parent[identity]
        return identity

    def tie(self, a: list[int], b: list[int], residual: bool) -> None:
        """Tie two runs of channels, one to one; `residual` if by an addition."""
        for left, right in zip(a, b, strict=True):
            left, right = self.find(left), self.find(right)
            if left != right:
                self.parent[right] = left
                if right in self.reasons:
                    self.reasons.setdefault(left, self.reasons[right])
                if residual or left in self.residual or right in self.residual:
                    self.residual.add(left)

    def keep_whole(self, labels: Labels | list[int] | None, reason: str) -> None:
        """Note why these channels cannot be dropped; the first reason stays."""
        for entry in labels or ():
            for identity in entry if isinstance(entry, list) else () if entry is None else (entry,):
                self.reasons.setdefault(self.find(identity), reason)

    def conclude(self, first_consumers: list[str]) -> Analysis:
        """Turn identities into groups of layers, and every layer's channels into segments of groups."""
        result = Analysis(whole=dict(self.left), first_consumers=first_consumers)
        candidates = dict(self._components(result))
        while True:
            owner = {
                identity: (group.name, channel)
                for group, roots in candidates.values()
                for channel, identity in enumerate(roots)
            }
            broken = self._irregular(candidates, owner)
            if not broken:
                break
            for name, reason in broken.items():
                self._set_aside(result, candidates.pop(name)[0], reason)
        result.groups = {name: group for name, (group, _) in candidates.items()}
        for table, target in ((self.inputs, result.inputs), (self.outputs, result.outputs)):
            for name, ids in table.items():
                layout = self._layout(ids, owner)
                if layout is not None and any(segment.unit for segment in layout):
                    target[name] = layout
        for name, labels in self.parameters.items():
            layouts = tuple(self._layout(ids, owner) for ids in labels)
            if any(layout and any(segment.unit for segment in layout) for layout in layouts):
                result.parameters[name] = layouts
        return result

    def _components(self, result: Analysis) -> Iterator[tuple[str, tuple[Group, list[int]]]]:
        """Groups of producers that share identities, unless a reason speaks against them."""
        left = dict(self.producers)
        while left:
            first = next(iter(left))
            members, roots = [first], {self.find(i) for i in left[first]}
            while grown := [n for n in left if n not in members and roots & {self.find(i) for i in left[n]}]:
                members += grown
                roots |= {self.find(i) for n in grown for i in left[n]}
            ids = [[self.find(i) for i in left.pop(n)] for n in members]
            group = Group(members[0], members, len(ids[0]), residual=bool(roots & self.residual))
            reason = next((self.reasons[root] for root in roots if root in self.reasons), None)
            if reason is None and (any(other != ids[0] for other in ids) or len(set(ids[0])) < len(ids[0])):
                reason = "its channels are tied to others out of step"
            if reason is None:
                reason = self._tile(group, ids[0])
            if reason is None:
                yield group.name, (group, ids[0])
            else:
                self._set_aside(result, group, reason)

    def _tile(self, group: Group, roots: list[int]) -> str | None:
        """Nest inside each group of a grouped convolution or GroupNorm; a reason if that cannot be."""
        for name, ids, tiles in self.tiled:
            found = [self.find(i) for i in ids]
            if not set(found) & set(roots):
                continue
            if found != roots:
                return f"{name} groups its channels together with others"
            if tiles % group.tiles and group.tiles % tiles:
                return f"{name} groups its channels into {tiles}, another layer into {group.tiles}"
            group.tiles = max(group.tiles, tiles)
        return None if group.channels > group.tiles else "each of its groups has a single channel"

    def _irregular(
        self, candidates: dict[str, tuple[Group, list[int]]], owner: dict[int, tuple[str, int]]
    ) -> dict[str, str]:
        """Groups that some layer or parameter does not take up in one piece."""
        broken: dict[str, str] = {}
        uses: list[tuple[str, list[int] | None]] = [*self.inputs.items(), *self.outputs.items()]
        uses += [(name, ids) for name, labels in self.parameters.items() for ids in labels]
        for name, ids in uses:
            if ids is not None and self._layout(ids, owner) is None:
                touched = {owner[self.find(i)][0] for i in ids if self.find(i) in owner}
                broken |= dict.fromkeys(touched, f"{name} takes up its channels only in part")
        return {name: reason for name, reason in broken.items() if name in candidates}

    def _layout(self, ids: list[int] | None, owner: dict[int, tuple[str, int]]) -> Layout | None:
        """Segments of a sequence of identities; None if a group does not appear in one piece."""
        if ids is None:
            return None
        places = [owner.get(self.find(i)) for i in ids]
        segments: list[Segment] = []
        at = 0
        while at < len(places):
            place, run = places[at], 1
            while at + run < len(places) and places[at + run] == place:
                run += 1
            if place is None:
                segments.append(Segment(None, run))
                at += run
                continue
            name, channels = place[0], len(self.producers[place[0]])
            expected = [(name, c) for c in range(channels) for _ in range(run)]
            if places[at : at + channels * run] != expected:
                return None
            segments.append(Segment(name, channels, run))
            at += channels * run
        return tuple(segments)

    @staticmethod
    def _set_aside(result: Analysis, group: Group, reason: str) -> None:
        result.whole |= dict.fromkeys(group.producers, reason)
