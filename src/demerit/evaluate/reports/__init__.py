"""Reports: `report.json` (`Report`), its page (`write_page`), and the leaderboard of several reports."""

from demerit.evaluate.reports.leaderboard import build_leaderboard
from demerit.evaluate.reports.page import write_page
from demerit.evaluate.reports.published import published_tables
from demerit.evaluate.reports.report import EpisodeLabels, Report

__all__ = ["EpisodeLabels", "Report", "build_leaderboard", "published_tables", "write_page"]
