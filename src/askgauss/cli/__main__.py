"""``python -m askgauss.cli`` is ``askgauss``."""

from askgauss.cli.app import main

main()
