"""Compares estimators over several seeds: trains the runs, reads them and tests the differences."""
