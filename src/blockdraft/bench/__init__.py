"""Measuring: is the text the same, and how much sooner did it come?"""
