"""How fast does an endpoint or the own engine answer, with drafts and without them, and what follows from it?"""
