"""trainbox: turns any container image into a training container."""

__version__ = "0.1.0"
