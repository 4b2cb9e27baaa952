"""Events of the accountant as the auditor's check reads them from a ledger's rows."""

from accountant.events import Event, parts, to_dict
from accountant.verify.events import Composed, composed
from accountant.verify.reading import canonical


def as_read(event: Event) -> Composed:
    """An event, written as a ledger's row has it and read by the auditor's own decoding."""
    return composed({canonical(to_dict(part)).decode(): count for part, count in parts(event)})
