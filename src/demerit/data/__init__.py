"""Datasets: episodes, frames and labels, readers of foreign formats, and the dataset folder on disk.

The nouns are `Episode` (with `Frames`, `Outcome`, `Origin`), `Preference`, `Reward`, `Dataset` and `Store`;
`open_dataset` opens a dataset in any format and `import_dataset` copies it into a store. All are names of `demerit`.
"""
