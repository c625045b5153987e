"""Reads files to their end, and checks that the report adds up."""

from gdpo.integrations.torch_files import load_dump
from gdpo.rollouts.readers import read_rollout_files


def read(path, **options):
    """The tables and the report."""
    reading = read_rollout_files(path, load_pt=load_dump, **options)
    tables = list(reading)
    report = reading.report
    assert report.rows == report.read + report.skipped
    assert report.read == sum(map(len, tables))
    assert all(f"{n.place}: {n.what}" in str(report) for n in report.notices.values())
    return tables, report


def notices(report):
    """The first line, the count and the sentence of each notice."""
    return [(n.line, n.count, n.what) for n in report.notices.values()]


def read_one(path, **options):
    """The only table, and the report."""
    (table,), report = read(path, **options)
    return table, report


def nothing(path):
    """The report on files that cannot be read."""
    tables, report = read(path)
    assert not tables
    return report
