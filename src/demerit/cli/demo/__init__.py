"""The demo: a stranger's first minute.

job.py      run_demo: teach on one part of the sample that ships, score the rest beside controls, write the report
words.py    what came out, in a headline and a few sentences
strips.py   episodes as film strips with the rewards drawn under the pictures
page.py     the report as one HTML file
"""

from demerit.cli.demo.job import DemoResult, run_demo
from demerit.cli.demo.words import percent

__all__ = ["DemoResult", "percent", "run_demo"]
