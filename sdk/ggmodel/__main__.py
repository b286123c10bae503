"""`python -m ggmodel`, and the entry point of `ggmodel`."""

import gc
import sys

from ggmodel.errors import Error


def main() -> None:
    """Imports the commands, which takes a moment, and runs one."""
    # Imports, a vocabulary and recorded graphs are objects that stay, more than 100,000: looking
    # through them for cycles, if only at every 50,000th, takes 5 % of a start.
    gc.set_threshold(200_000)
    try:
        from ggmodel.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Error as error:  # an environment variable that sets a limit
        sys.exit(f"error: {error}")
    run()


if __name__ == "__main__":
    main()
