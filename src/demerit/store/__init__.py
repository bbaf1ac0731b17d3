"""The dataset folder on disk: `dataset.json`, the parquet parts it lists, and the videos.

parts.py     a manifest and its parts: the one place where files are committed
lock.py      one writer at a time
rows.py      episodes, preferences and problems as parquet rows
folder.py    Store: open, filter, stream, append
rewards.py   RewardStore: one model's rewards beside a dataset
"""

from demerit.store.folder import Store, StoreWriter
from demerit.store.rewards import RewardStore

__all__ = ["RewardStore", "Store", "StoreWriter"]
