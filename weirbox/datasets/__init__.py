"""Datasets: files of many formats, read as a stream of cases with stable ids."""

from weirbox.datasets.opening import open_dataset
from weirbox.datasets.scan import Dataset, Scan
from weirbox.datasets.source import to_path

__all__ = ["Dataset", "Scan", "open_dataset", "to_path"]
