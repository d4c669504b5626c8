"""Where data sets are found, fetched and checked."""
