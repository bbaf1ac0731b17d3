"""teach: a dataset in, a model out. There is something usable at every moment.

1. gather labels; too few, or contradictory ones, are an error before anything is decoded
2. extract features of every frame (cached)          Ctrl-C: continue with the episodes done
3. fit the head on everything; write the model
   train a reader, where torch is installed          Ctrl-C: go on without
4. cross-validate, calibrate; write the model again  Ctrl-C: keep what is written
5. write the report
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import NOT_A_MODEL, Episode
from demerit.data.files import lock_folder, make_folder, write_atomic
from demerit.data.formats import open_dataset
from demerit.data.splits import LabelSelection, SeenEpisodes
from demerit.errors import BadInput, DemeritError, StoppedByUser, StoreError
from demerit.models.familiarity import Familiarity
from demerit.models.loading import DESCRIPTION, FORMAT, check_out, name_of, read_description
from demerit.models.signals import fit_scales
from demerit.models.taught.features import (
    LOOKS,
    NO_TOWER,
    SHIPPED_TOWER,
    FeatureNetwork,
    PairedNetwork,
    Reader,
    load_network,
)
from demerit.models.taught.head import TaughtHead
from demerit.models.taught.model import (
    IDENTITY,
    KIND,
    TaughtConfig,
    TaughtModel,
    head_file,
    held_file,
    pack_held_out,
    reader_file,
    seen_file,
    tower_file,
)
from demerit.training.teach.data import TeachConfig, TeachData, gather_data, teaches_progress
from demerit.training.teach.features import (
    EmbeddedEpisode,
    FeatureSpec,
    UnreadableEpisode,
    choose_stride,
    common_cameras,
    count_cameras,
    extract_features,
    images_to_keep,
    missing_extra,
    open_tower,
)
from demerit.training.teach.report import (
    LabelSuggestion,
    TeachResults,
    build_results,
    suggest_labels,
    write_teach_page,
)
from demerit.training.teach.training_set import TrainingSet, build_training_set, can_train_reader
from demerit.training.teach.validate import (
    CrossValidation,
    CurvePoint,
    SuccessCalibration,
    calibrate_success,
    cross_validate,
    learning_curve,
    list_held_out,
)

OnProgress = Callable[[str, int, int], None]
"""called with the current stage, how much of it is done, and how much there is"""
STOPPED = (
    "The recordings stop when the task is done: only their last frames count as done, so values are low until the end."
)
UNMEASURED = "teaching was interrupted before it was measured"
CURVE_GROUPS = 60
"""up to this many groups, a learning curve is computed"""
UNLABELLED_EPISODES = (20, 200)
"""unlabelled episodes considered for suggestions: as many as are labelled, within these bounds"""
CACHE_SUFFIX = ".teaching"
WRITTEN = "head-", "seen-", "held-", "reader-", "tower-"
"""how the names of a model's files begin; they end in its hashes"""
"""suffix of the feature cache, a folder next to the model folder"""
READS, READ_EVERY = 60, 3
"""how many frames of a typical episode a reader reads, at least; and how far apart, at most"""


@dataclass(frozen=True, eq=False)
class TeachOutcome:
    """What `teach` returns."""

    model: TaughtModel
    results: TeachResults
    folder: Path | None
    stopped: str = ""
    """after an interruption: what was not done; else empty"""


def teach(
    dataset: str | Path | Dataset,
    out: str | Path | None = None,
    *,
    risk: float | None = None,
    cameras: Sequence[str] = (),
    signals: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    config: TeachConfig | None = None,
    network: FeatureNetwork | str | Path | None = None,
    tower: str | Path | None = None,
    workers: int | None = None,
    sources: Sequence[str] = NOT_A_MODEL,
    use_test_split: bool = False,
    cache: str | Path | None = None,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> TeachOutcome:
    """Teach a model from your own episodes, some of them labelled in any way.

    Args:
        dataset: a folder, `format:path`, or an open dataset.
        out: the model folder to write; None = write nothing.
        risk: the share of failures that may be called a success; None = 5%, or with fewer than 19 failures the smallest
            that they can guarantee (at most 25%).
        cameras: cameras to use; empty = all that more than half of the taught episodes have.
        signals: signals to read beside the images; episodes without them are not taught, and not scored by the model.
        limit: use only the first N episodes.
        seed: seed for folds and negatives; ignored when `config` is given.
        config: everything that can be tuned.
        network: another network than the shipped one, or its folder.
        tower: the second tower: `droid` (shipped), `none`, an ONNX file or the folder of a vision model for
            `transformers`; None = `droid` beside the shipped network.
        workers: decoding processes; None = one per core, 0 = decode in this process.
        sources: label sources to teach from (see `demerit.data.episode`).
        use_test_split: also teach from episodes of a test split.
        cache: folder for features; None = next to the model, and none without a model.
        on_progress: called with stage, done and total.
    """
    if risk is not None and not 0 < risk < 1:
        raise BadInput("risk", "a number between 0 and 1", risk)
    for name, number, least in (("limit", limit, 1), ("workers", workers, 0)):
        if number is not None and number < least:
            raise BadInput(name, f"a number, {least} or more", number)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(str(dataset))
    tower = tower or (SHIPPED_TOWER if network is None else NO_TOWER)
    loaded = load_network(network, open_tower(tower))
    data = gather_data(opened, limit, LabelSelection(tuple(sources), use_test_split))
    spec = _feature_spec(data, loaded, tuple(cameras), config or TeachConfig(seed=seed), signals)
    folder = None if out is None else Path(out)
    with _open_cache(folder, data.address, cache) as features:
        processes = os.cpu_count() or 1 if workers is None else workers
        return _TeachJob(data, spec, risk, folder, features, processes, on_progress).run()


def _feature_spec(
    data: TeachData, network: FeatureNetwork, cameras: tuple[str, ...], config: TeachConfig, signals: Sequence[str]
) -> FeatureSpec:
    cameras = cameras or common_cameras(data.taught)
    if not cameras:
        counts = ", ".join(f"{name} ({count})" for name, count in count_cameras(data.taught).items())
        raise BadInput(data.address, "a camera that most labelled episodes have (or --camera)", counts)
    choices = count_cameras(data.taught)
    unknown = [name for name in cameras if name not in choices]
    if unknown:
        raise BadInput("cameras", f"some of {', '.join(sorted(choices))}", ", ".join(unknown))
    lengths = [max(_length(episode, name) for name in cameras) for episode in data.taught]
    keep = images_to_keep(network, config, len(data.taught) * len(cameras))
    stride, scales = choose_stride(lengths, len(cameras)), fit_scales(data.taught, signals) if signals else {}
    return FeatureSpec(network, cameras, stride, config, keep, scales)


def _length(episode: Episode, camera: str) -> int:
    try:
        return len(episode.views[camera]) if camera in episode.views else 0
    except DemeritError:
        return 0  # reported with its reason when it is decoded


@contextmanager
def _open_cache(out: Path | None, address: str, place: str | Path | None) -> Iterator[Path]:
    """Lock and return the folder of the feature cache; a temporary one when none is given and no model is written."""
    if out is None and place is None:
        with tempfile.TemporaryDirectory(prefix="demerit-teach-") as folder:
            yield Path(folder)
        return
    if out is not None:
        facts = check_out(out, KIND, (*WRITTEN, "report.", "."))
        before = facts.get("taught_on", {}).get("address")
        if facts and before != address:
            raise StoreError(out, f"it holds a model taught on {before}, not on {address}; choose another folder")
        place = place or out.with_name(out.name + CACHE_SUFFIX)
    cache = make_folder(Path(str(place)))
    with lock_folder(cache):
        yield cache


@dataclass(eq=False)
class _TeachJob:
    """One run of `teach`, stage by stage."""

    data: TeachData
    spec: FeatureSpec
    risk: float | None
    out: Path | None
    cache: Path
    workers: int
    on_progress: OnProgress
    notes: list[str] = field(default_factory=list)
    stopped: str = ""

    def run(self) -> TeachOutcome:
        finished_before = _is_finished(self.out)
        training_set, skipped = build_training_set(self.data, self.spec, self._embed_taught())
        self.notes += [*self._describe_cameras(), *skipped]
        if self.spec.signals:
            self.notes.append(f"It reads signals ({', '.join(self.spec.signals)}): it scores no episode without them.")
        if training_set.stops:
            self.notes.append(STOPPED)
        head = _fit_head(training_set)
        held_out = CrossValidation(np.full(len(training_set), -1))
        if self.out is None or not (self.out / DESCRIPTION).exists():
            # an earlier model with figures is better than this one without
            unmeasured = calibrate_success(training_set, held_out, self.risk)
            self._write(training_set, head, unmeasured, held_out, caution=UNMEASURED)
        curve: list[CurvePoint] = []
        suggestions: list[LabelSuggestion] | None = None
        reader: Reader | None = None
        try:
            training_set, reader = self._train_reader(training_set)
            if reader is not None:
                head = _fit_head(training_set)
            cross_validate(
                training_set, held_out, lambda done, total: self.on_progress("cross-validating", done, total)
            )
            if len(set(training_set.groups)) <= CURVE_GROUPS:
                curve = learning_curve(training_set)
            if not self.stopped:
                suggestions = self._suggest(training_set, held_out, head, reader)
        except KeyboardInterrupt:
            self.stopped = self.stopped or "interrupted during cross-validation: the figures use only some folds"
        if self.stopped and finished_before:
            raise StoppedByUser(f"{self.out} keeps the model of the earlier run. Run the same command to resume.")
        calibration = calibrate_success(training_set, held_out, self.risk)
        model = self._write(training_set, head, calibration, held_out, reader)
        notes = (*self.data.notes, *self.notes)
        results = build_results(self.data, training_set, held_out, calibration, model, curve, suggestions, notes)
        if not results.answer.is_trusted:
            model = self._write(training_set, head, calibration, held_out, reader, results.title)
        self._write_report(results)
        return TeachOutcome(model, results, self.out, self.stopped)

    def _embed_taught(self) -> list[EmbeddedEpisode]:
        """Extract the features of everything taught; Ctrl-C ends this stage, not the job."""
        episodes = self.data.interleave()
        results: list[EmbeddedEpisode] = []
        lost: list[UnreadableEpisode] = []
        try:
            for result in self._extract(episodes, "extracting features"):
                if isinstance(result, EmbeddedEpisode):
                    results.append(result)
                else:
                    lost.append(result)
        except KeyboardInterrupt:
            if not results:
                raise
            done = len(results) + len(lost)
            self.stopped = f"interrupted after {done} of {len(episodes)} episodes: the model was taught on those"
        if len(lost) * 2 > len(episodes) or not results:
            reason, count = Counter(why for _, why in lost).most_common(1)[0]
            got = f"{len(lost)} of {len(episodes)} labelled episodes that cannot, {count} of them because: {reason}"
            raise BadInput(self.data.address, "videos that can be read", got)
        self.notes += [f"{id} was skipped: {why.removesuffix('.')}." for id, why in lost]
        order = {episode.id: place for place, episode in enumerate(self.data.taught)}
        return sorted(results, key=lambda embedded: order[embedded.id])

    def _describe_cameras(self) -> Iterator[str]:
        taught = self.data.taught
        for name, count in count_cameras(taught).items():
            some = f"{count} of {len(taught)} labelled episodes have the camera {name}"
            if name not in self.spec.cameras:
                yield f"{some}: it was not used (--camera chooses)."
            elif count < len(taught):
                yield f"{some}: the others were taught without it."

    def _extract(self, episodes: Sequence[Episode], stage: str) -> Iterator[EmbeddedEpisode | UnreadableEpisode]:
        total = len(episodes)
        workers = min(self.workers, total)
        return extract_features(
            episodes, self.spec, self.cache, workers, lambda done: self.on_progress(stage, done, total)
        )

    def _train_reader(self, training_set: TrainingSet) -> tuple[TrainingSet, Reader | None]:
        """Train a reader, and let it read every example that it was not trained on; not with too few labels."""
        if self.spec.config.reader and (package := missing_extra()):
            self.notes.append(
                f"No reader was trained because {package} is not installed. With the extra `train` "
                "(pip install -e '.[train]') teaching also looks at larger images, which helps most on robots that "
                "the network has not seen."
            )
        if not self.spec.keep or not can_train_reader(training_set):
            return training_set, None
        # torch is an extra
        from demerit.training.teach.torch_reader import teach_reader  # noqa: PLC0415

        try:
            content, read = teach_reader(
                training_set, lambda done, total: self.on_progress("training a reader", done, total)
            )
        except KeyboardInterrupt:
            self.stopped = (
                self.stopped or "interrupted while the reader was trained: the model has none, and no figures"
            )
            raise
        return replace(training_set, read=read), Reader(content, self.cache)

    def _suggest(
        self, training_set: TrainingSet, held_out: CrossValidation, head: TaughtHead, reader: Reader | None
    ) -> list[LabelSuggestion]:
        most = int(np.clip(len(training_set), *UNLABELLED_EPISODES))
        results = self._extract(self.data.unlabelled[:most], "looking for what to label next")
        episodes = [result for result in results if isinstance(result, EmbeddedEpisode)]
        calibration = calibrate_success(training_set, held_out, self.risk)
        return suggest_labels(training_set, held_out.heads, head, calibration, episodes, reader)

    def _write(
        self,
        training_set: TrainingSet,
        head: TaughtHead,
        calibration: SuccessCalibration,
        held_out: CrossValidation,
        reader: Reader | None = None,
        caution: str = "",
    ) -> TaughtModel:
        """Write the model; `caution` says why it is not trusted yet."""
        spec, reader = self.spec, reader if head.mix else None
        head = replace(head, steep=calibration.steep, middle=calibration.middle)
        content = head.content()
        config = TaughtConfig(
            network=spec.network.hash,
            cameras=spec.cameras,
            parts=spec.parts,
            signals=spec.signals,
            stride=spec.stride,
            threshold=calibration.threshold,
            risk=calibration.risk,
            promise=calibration.note,
            taught_on=self._taught_on(training_set),
            licence=_combine_licences(spec.network, training_set),
            head=hashlib.sha256(content).hexdigest(),
            reader="" if reader is None else reader.sha256,
            second_tower=spec.network.tower.sha256 if isinstance(spec.network, PairedNetwork) else "",
            read_every=1 if reader is None else _read_every(training_set),
            large=bool(spec.keep),
            lesson={
                "head": dict(head.about),
                "settings": spec.config.as_dict(),
                "stopped": self.stopped,
                **({"caution": caution} if caution else {}),
            },
            identity=IDENTITY,
        )
        seen = SeenEpisodes.of(embedded.episode for embedded in training_set.episodes)
        held = list_held_out(training_set, held_out, calibration)
        if self.out is not None:
            names = {head_file(config.head): content, seen_file(config.head): seen.content()}
            names[held_file(config.head)] = pack_held_out(held)
            if reader is not None:
                names[reader_file(config.reader)] = reader.content
            if isinstance(spec.network, PairedNetwork) and not spec.network.tower.is_shipped:
                names[tower_file(config.second_tower)] = spec.network.tower.content
            _write_model(self.out, config, names)
        name = KIND if self.out is None else name_of(self.out)
        return TaughtModel(config, head, spec.network, name, seen, reader, held)

    def _taught_on(self, training_set: TrainingSet) -> dict[str, Any]:
        verdicts = Counter(label.verdict for label in training_set.labels)
        return {
            "address": self.data.address,
            "dataset": self.data.name,
            "episodes": len(training_set),
            "successes": verdicts[True],
            "failures": verdicts[False],
            "labels": ", ".join(f"{kind}: {count}" for kind, count in self.data.count_kinds().items()),
            "tasks": training_set.tasks,
            **({} if teaches_progress(training_set.labels) else {"quantity": "score"}),
        }

    def _write_report(self, results: TeachResults) -> None:
        if self.out is None:
            return
        self.on_progress("writing the report", 0, 1)
        episodes = (*self.data.taught, *self.data.unlabelled)
        frames = {episode.id: episode.views[name] for episode in episodes for name in self.spec.present(episode)[:1]}
        try:
            results.write(self.out / "report.json")
            write_teach_page(results, self.out / "report.html", frames, 0 if self.stopped else 8)
        except KeyboardInterrupt:
            self.stopped = self.stopped or "interrupted while the report was written: the model is complete"
            return
        self.on_progress("writing the report", 1, 1)


def _fit_head(training_set: TrainingSet) -> TaughtHead:
    """Fit the head on everything, with what the taught episodes look like."""
    head = training_set.fit()
    taught = (head.standardize(training_set.x(index)) for index in range(len(training_set)))
    looks = training_set.layout.columns_of(LOOKS)
    return replace(head, familiarity=Familiarity.fit(taught, training_set.groups, looks if len(looks) else None))


def _combine_licences(network: FeatureNetwork, training_set: TrainingSet) -> str:
    data = sorted({embedded.episode.origin.licence for embedded in training_set.episodes} - {""})
    weights = network.licence or "unknown"
    return weights if not data else f"{weights}, taught on data under {', '.join(data)}"


# The model folder


def _is_finished(out: Path | None) -> bool:
    """Whether the folder holds a model of a run that was not interrupted."""
    if out is None or not (out / DESCRIPTION).exists() or not (out / "report.json").exists():
        return False
    return not read_description(out).get("lesson", {}).get("stopped")


def _read_every(training_set: TrainingSet) -> int:
    """Neighbouring frames of a long video show the same: reading each is not worth the time."""
    frames = float(np.median([len(embedded.at) for embedded in training_set.episodes]))
    return int(np.clip(frames // READS, 1, READ_EVERY if training_set.spec.stride == 1 else 1))


def _write_model(out: Path, config: TaughtConfig, names: Mapping[str, bytes]) -> None:
    """Write the files named by their hashes first, then model.json, which switches to them atomically."""
    make_folder(out)
    for name, content in names.items():
        write_atomic(out / name, content)
    facts = {"format": FORMAT, "kind": KIND, **config.as_dict()}
    write_atomic(out / DESCRIPTION, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    for path in list(out.iterdir()):
        if path.name.startswith(WRITTEN) and path.name not in names:
            path.unlink(missing_ok=True)
