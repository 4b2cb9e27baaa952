"""The privacy-loss ledger: append-only, durable, hash-chained."""

from accountant.ledger.ledger import Ledger
from accountant.ledger.policy import Budget, Entry, LedgerPolicy, Receipt

__all__ = ["Budget", "Entry", "Ledger", "LedgerPolicy", "Receipt"]
