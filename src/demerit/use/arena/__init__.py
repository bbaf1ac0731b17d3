"""The arena: sites evaluate hidden policies in pairs on their own robots.

tables.py     policies, trials, uploads, scores of reward models
trials.py     a trial step by step: pair, photo, rollouts, judgement
uploads.py    files that arrive in pieces
results.py    the published dump, the ranking, agreement of reward models with people
export.py     trials as a RoboArena dataset
app.py        the pages
"""
