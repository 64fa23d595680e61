"""From data to a recommendation: which clients should train together, and how sure that is."""

from __future__ import annotations

from fedkin.advice.advising import Plan, advise
from fedkin.advice.partners import PartnerValues
from fedkin.advice.result import Advice, OfClient
from fedkin.advice.work import Bench

__all__ = ["Advice", "Bench", "OfClient", "PartnerValues", "Plan", "advise"]
