"""`python -m occ`, and what the script `occ` calls."""

import sys


def main() -> None:
    """Run the `occ` command; an interrupt while it is still imported says nothing."""
    try:
        from occ.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
