"""The annotation app: people verify, compare and mark episodes in a browser.

labels.py    what an answer is, and the labels that it becomes
work.py      what to ask; the queue: who gets which item, drafts, answers
"""
