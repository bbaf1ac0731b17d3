// Videos that step frame by frame and play together. The first video leads; the others follow its clock.

const LATE = 0.06; // seconds that a follower may be off while playing

/** The frame that is on the screen at a time. */
export function frameAt(times, time) {
  let low = 0, high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= time + 1e-4) low = middle; else high = middle - 1;
  }
  return low;
}

/**
 * A time at which a browser shows exactly this frame: shortly after it appears. The middle of its time on the screen would do
 * at a constant rate, but where frames last differently Chromium estimates how long one lasts and may show the next.
 */
export function timeOf(times, frame) {
  const gap = frame + 1 < times.length ? times[frame + 1] - times[frame] : 0.01;
  return times[frame] + Math.min(gap / 2, 0.004);
}

export class Stage extends EventTarget {
  /** videos: [{element, times}]; sends "frame" when another frame is shown and "play" when it starts or stops. */
  constructor(videos) {
    super();
    const nothing = { element: document.createElement("video"), times: [0] }; // no video can be shown
    this.leader = !videos.length ? nothing : videos.reduce((longest, one) => (one.times.at(-1) > longest.times.at(-1) ? one : longest));
    this.videos = [this.leader, ...videos.filter((one) => one !== this.leader)];
    this.frames = this.leader.times.length;
    this.frame = 0;
    this.isPlaying = false;
    this.speed = 1;
    for (const { element } of this.videos) {
      element.addEventListener("error", () => this.dispatchEvent(new Event("broken")));
      element.addEventListener("loadedmetadata", () => this.show(this.frame), { once: true });
    }
    this.leader.element.addEventListener("ended", () => { this.pause(); this.show(this.frames - 1); });
  }

  /** Stop, and show a frame in every video. */
  show(frame) {
    this.pause();
    this.#arrive(Math.max(0, Math.min(this.frames - 1, Math.round(frame))));
    const time = this.leader.times[this.frame];
    for (const { element, times } of this.videos) element.currentTime = timeOf(times, frameAt(times, time));
  }

  step(count) { this.show(this.frame + count); }

  play() {
    if (this.isPlaying) return;
    if (this.frame === this.frames - 1) this.show(0);
    this.isPlaying = true;
    for (const { element } of this.videos) {
      element.playbackRate = this.speed;
      element.play().catch(() => {});
    }
    this.dispatchEvent(new Event("play"));
    this.#follow();
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    for (const { element } of this.videos) element.pause();
    this.dispatchEvent(new Event("play"));
    this.show(this.frame);
  }

  toggle() { if (this.isPlaying) this.pause(); else this.play(); }

  setSpeed(speed) {
    this.speed = Math.max(0.25, Math.min(4, speed));
    for (const { element } of this.videos) element.playbackRate = this.speed;
    this.dispatchEvent(new Event("play"));
  }

  #follow() {
    if (!this.isPlaying) return;
    const time = this.leader.element.currentTime;
    this.#arrive(frameAt(this.leader.times, time));
    for (const { element, times } of this.videos.slice(1)) {
      const end = times.at(-1);
      if (time >= end) { if (!element.paused) { element.pause(); element.currentTime = timeOf(times, times.length - 1); } }
      else if (Math.abs(element.currentTime - time) > LATE * this.speed) element.currentTime = time;
    }
    requestAnimationFrame(() => this.#follow());
  }

  #arrive(frame) {
    if (frame === this.frame && this.isShown) return;
    this.isShown = true;
    const before = this.frame;
    this.frame = frame;
    this.dispatchEvent(new CustomEvent("frame", { detail: { before } }));
  }
}
