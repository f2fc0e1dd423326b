"""Servers of others, seen from outside: what they are, what they answer, what they count.

Nothing here imports torch: the models run elsewhere.
"""
