"""The section `monitor` of an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from probekit.data.readers import TableFormat
from probekit.experiment.data import local_file
from probekit.section import Distinct, Section, rule_error

if TYPE_CHECKING:
    from probekit.experiment.schema import Experiment


class MonitorSection(Section):
    """Thresholds of the chosen probe, from negatives that are not among the data.

    Attributes:
        negatives: file of texts that must not raise an alarm, in `data.root`; it has the columns of
            the data except label, id and split
        format: format of this file
        fpr: false positive rates; the rate on new negatives at the threshold of each is at most
            this, with 95 % confidence
    """

    negatives: str
    format: TableFormat = "csv"
    fpr: Distinct[Annotated[float, Field(ge=1e-6, lt=1)]] = (0.01,)

    _file_is_local = field_validator("negatives")(local_file)

    @property
    def files(self) -> tuple[str, ...]:
        """The files in `data.root` that it names."""
        return (self.negatives,)


def check(_settings: MonitorSection, experiment: Experiment) -> None:
    """Check the rules of an experiment with a monitor."""
    if experiment.data.positive is None:
        raise rule_error("`monitor` requires `data.positive`, the label of an alarm", "monitor")
