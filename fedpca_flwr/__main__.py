"""Entry point of `python -m fedpca_flwr`: see `fedpca_flwr.cli`."""

import sys

from fedpca_flwr.cli import main

if __name__ == "__main__":
    sys.exit(main())
