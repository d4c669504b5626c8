"""`python -m rlgates.agents.zoo`."""

from rlgates.agents.zoo import main

main()
