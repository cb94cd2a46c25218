"""The supports of ordered masks, and one-line errors for parameters that break their constraint."""

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size


class _OrderedMask(constraints.Constraint):
    """Ones, then zeros, along the last dimension."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        binary = ((value == 0) | (value == 1)).all(-1)
        return binary & (value[..., 1:] <= value[..., :-1]).all(-1)


class _Descending(constraints.Constraint):
    """Values that never rise along the last dimension, 1 ≥ z₁ ≥ … ≥ zₙ ≥ 0."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        inside = ((value >= 0) & (value <= 1)).all(-1)
        return inside & (value[..., 1:] <= value[..., :-1]).all(-1)


class _PositiveFinite(constraints.Constraint):
    """Greater than zero and finite."""

    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & value.isfinite()


ordered_mask = _OrderedMask()
descending = _Descending()
positive_finite = _PositiveFinite()

_IN_WORDS: dict[constraints.Constraint, str] = {
    constraints.real: "free of NaN",
    constraints.real_vector: "free of NaN",
    constraints.positive: "greater than 0",
    constraints.unit_interval: "between 0 and 1",
    positive_finite: "finite and greater than 0",
}


def validate(distribution: Distribution, enabled: bool | None) -> None:
    """Take over torch's `validate_args`, with errors of one line that name the parameter, the value and its index."""
    distribution._validate_args = Distribution._validate_args if enabled is None else enabled
    if not distribution._validate_args:
        return
    for name, constraint in distribution.arg_constraints.items():
        if name not in distribution.__dict__:  # derived on demand from the parameter that was given
            continue
        value = getattr(distribution, name)
        scalar = constraint.base_constraint if isinstance(constraint, constraints.independent) else constraint
        bad = ~scalar.check(value)
        if bad.any():
            where = tuple(torch.nonzero(bad)[0].tolist())
            at = f" at index {where}" if where else ""
            words = _IN_WORDS.get(scalar, f"in the set {scalar}")
            owner = type(distribution).__name__
            raise ValueError(f"{owner}: {name} must be {words}; got {value[where].item()}{at}")


class Expandable(Distribution):
    """A distribution that expands by the parameters that it was given, whose names are those of `arg_constraints`."""

    carried: ClassVar[tuple[str, ...]] = ()  # what else an expanded one has from it

    def expand(self, batch_shape: _size, _instance: Self | None = None) -> Self:
        """Return the same distribution with its batch shape expanded."""
        kind = next(kind for kind in type(self).__mro__ if "arg_constraints" in vars(kind))
        new: Self = self._get_checked_instance(kind, _instance)  # type: ignore[no-untyped-call]
        shape = torch.Size(batch_shape)
        for name in self.arg_constraints:
            if name in self.__dict__:
                value = getattr(self, name)
                setattr(new, name, value.expand(shape + value.shape[len(self.batch_shape) :]))
        for name in self.carried:
            setattr(new, name, getattr(self, name))
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


def one_of(owner: str, **given: Tensor | None) -> tuple[str, Tensor]:
    """Name and value of the one parameter that is given, of two that say the same."""
    names = [name for name, value in given.items() if value is not None]
    value = given[names[0]] if len(names) == 1 else None
    if value is None:
        raise ValueError(f"{owner}: give {' or '.join(given)}, one of the two")
    return names[0], value


def floating_vector(owner: str, name: str, value: Tensor) -> Tensor:
    """Return `value` if it is a floating-point tensor of at least one dimension, else raise a ValueError."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
        got = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{owner}: {name} must be a floating-point tensor of shape (…, n); got {got}")
    return value
