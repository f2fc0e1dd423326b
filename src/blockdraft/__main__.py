"""`python -m blockdraft`, which is how torchrun starts it."""

from blockdraft.cli.main import main

main(prog_name="blockdraft")
