"""`python -m occ.cli`: the `occ` command without its script."""

from occ.cli import main

main()
