"""The rlgates command and its subcommands."""
