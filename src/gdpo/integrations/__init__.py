"""Training frameworks: shapes in, formula called, shapes out. No statistics in here."""
