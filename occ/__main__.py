"""`python -m occ`: the `occ` command without its script."""

from occ.cli import main

main()
