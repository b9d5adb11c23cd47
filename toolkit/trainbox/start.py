"""Console script `train`: the start of the launcher, as fast as it can be."""

from __future__ import annotations

import gc


def main() -> None:
    """Runs `trainbox.train.main`."""
    gc.disable()  # what is imported lives to the end: to look for garbage among it takes milliseconds
    from trainbox import train

    gc.enable()
    train.main()
