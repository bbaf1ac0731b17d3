"""Folders that a corpus is made of: two like OXE's, one like DROID's with scenes, RoboArena's, and a scored one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from demerit.data.video import write_video

FRAMES = 24


def write_clip(path: Path, seed: int) -> str:
    """Write a small video that no other seed gives."""
    rng = np.random.default_rng(seed)
    images = np.broadcast_to(rng.integers(0, 255, (1, 32, 32, 3), dtype=np.uint8), (FRAMES, 32, 32, 3)).copy()
    images[:, :4] = np.linspace(0, 255, FRAMES).astype(np.uint8)[:, None, None, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, images, 8.0)
    return path.name


def write_videos(folder: Path, rows: list[dict[str, Any]], seed: int) -> Path:
    """Write a folder of videos with a label file."""
    lines = [{"file": write_clip(folder / f"{number}.mp4", seed + number), **row} for number, row in enumerate(rows)]
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_roboarena(root: Path, scores: list[tuple[float, float]], seed: int) -> Path:
    """Write a RoboArena dump: a session for each pair of partial successes, two sessions to an instruction."""
    for number, pair in enumerate(scores):
        session = root / "evaluation_sessions" / f"s{number:02d}"
        policies = {}
        for letter, score in zip("AB", pair, strict=True):
            write_clip(session / f"{letter}_policy" / "left_shoulder.mp4", seed + 10 * number + ord(letter))
            policies[letter] = {"policy_name": letter, "binary_success": int(score == 1), "partial_success": score}
        facts = {
            "language_instruction": f"arena task {number // 2}",
            "preference": "A" if pair[0] > pair[1] else "B",
            "evaluator_name": "Ada",
            "policies": policies,
        }
        (session / "metadata.yaml").write_text(yaml.safe_dump(facts))
    return root


def make_folders(root: Path, videos: bool = True) -> Path:
    """Write all of them; without videos only the folders."""
    if not videos:
        for name in ("oxe/kitchen", "oxe/blocks", "droid", "roboarena", "scored"):
            (root / name).mkdir(parents=True)
        return root
    for place, name in enumerate(("kitchen", "blocks")):
        rows = [{"instruction": f"put the cup on shelf {10 * place + number // 3}"} for number in range(24)]
        write_videos(root / "oxe" / name, rows, 1000 * (place + 1))
    scenes = [{"instruction": f"move mug {n}", "scene": ("office", "kitchen")[n % 2]} for n in range(12)]
    write_videos(root / "droid", scenes, 5000)
    write_roboarena(root / "roboarena", [(1.0, 0.3), (0.6, 0.0), (0.9, 0.1), (0.4, 0.7)], 7000)
    stars = (0, 12, 13, 50, 88, 100)
    scored = [{"instruction": f"fold towel {n // 2}", "stars": value} for n, value in enumerate(stars)]
    write_videos(root / "scored", [*scored, {"instruction": "fold towel 9", "stars": "n/a"}], 9000)
    return root


RECIPE = """
name: small
cap: 10
sources:
  - {folder: oxe/*, role: successes, licence: CC-BY-4.0, embodiment: WidowX}
  - {folder: droid, licence: CC-BY-4.0, groups: false}
  - {folder: roboarena, role: graded, cap: 0}
  - {folder: scored, role: graded, licence: MIT, score: {column: stars, low: 0, high: 100}}
negatives: {mix: "clip=2,wrong-instruction=1", per_episode: 3}
splits: {shares: {train: 0.6, val: 0.2, test: 0.2}}
"""
