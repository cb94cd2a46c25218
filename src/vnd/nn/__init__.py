"""Layers and networks that learn the order of their units."""

from vnd.nn.differences import difference_term, update_differences
from vnd.nn.ordering import OrderingUnit, OrderReport
from vnd.nn.quantile import Quantile, couple

__all__ = ["OrderReport", "OrderingUnit", "Quantile", "couple", "difference_term", "update_differences"]
