"""The command line.

    main.py                   the group: finds commands, turns errors into a line and an exit code
    generate, chat, inspect   one file per command; each calls itself `command`
    options.py                how options are grouped; *_options.py are the groups that commands share
    prompt, loading, answer   what a command does on its way: read the prompt, load the engine, run the request
    render, terminal          what is shown, and where

Nothing at the top of these modules imports torch or transformers: --help must not wait for them.
"""
