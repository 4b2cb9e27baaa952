from accountant import (
    calibrate as calibrate,
    dp_event as dp_event,
    envelope as envelope,
    filters as filters,
    gaussian_dp as gaussian_dp,
    moments as moments,
    renyi as renyi,
)
from accountant.curve import Tradeoff as Tradeoff
from accountant.dp_event import from_dp_event as from_dp_event, to_dp_event as to_dp_event
from accountant.errors import (
    AccountingError as AccountingError,
    BudgetExceeded as BudgetExceeded,
    CalibrationError as CalibrationError,
    EventError as EventError,
    LedgerError as LedgerError,
    PrivacyError as PrivacyError,
)
from accountant.events import (
    Adjacency as Adjacency,
    BestOfRandomRuns as BestOfRandomRuns,
    Composed as Composed,
    Event as Event,
    FixedSizeSampledGaussian as FixedSizeSampledGaussian,
    Gaussian as Gaussian,
    Laplace as Laplace,
    MixtureOfGaussians as MixtureOfGaussians,
    NonPrivate as NonPrivate,
    PoissonSampledGaussian as PoissonSampledGaussian,
    PoissonSampledLaplace as PoissonSampledLaplace,
    RandomAllocationGaussian as RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian as TruncatedPoissonSampledGaussian,
    Unit as Unit,
    ZeroConcentrated as ZeroConcentrated,
    compose as compose,
    from_dict as from_dict,
    of_group as of_group,
    repeat as repeat,
    to_dict as to_dict,
)
from accountant.front import (
    Accountant as Accountant,
    epsilon as epsilon,
    epsilon_interval as epsilon_interval,
    epsilon_table as epsilon_table,
    noise_multiplier as noise_multiplier,
    tradeoff as tradeoff,
)
from accountant.ledger import Budget as Budget, Ledger as Ledger, LedgerPolicy as LedgerPolicy
from accountant.tight import numerical as numerical
from accountant.tight.numerical import Interval as Interval
from accountant.wording import event_text as event_text

DISTRIBUTION: str
