"""The arena: sites evaluate hidden policies in pairs on their own robots.

trials.py     a trial step by step: pair, photo, rollouts, judgement
uploads.py    files that arrive in pieces
results.py    rewards of models, the published dump, the ranking, trials as a RoboArena dataset
app.py        the pages
"""
