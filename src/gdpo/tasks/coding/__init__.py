"""Programs: the rows of coding datasets become tests."""
