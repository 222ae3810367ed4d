"""The command line: ``askgauss COMMAND``."""

from askgauss.cli.app import app, main

__all__ = ["app", "main"]
