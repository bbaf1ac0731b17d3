"""The dataset folder on disk: `dataset.json`, the parquet parts it lists, and the videos.

parts.py     a manifest and its parts: the one place where files are committed
lock.py      one writer at a time
rows.py      episodes, preferences and problems as parquet rows
folder.py    Store: open, filter, stream, append
"""

from demerit.data.store.folder import Store, StoreWriter

__all__ = ["Store", "StoreWriter"]
