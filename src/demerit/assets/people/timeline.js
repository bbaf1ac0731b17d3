// The timeline below the videos: playhead, progress, failure events, stages. Click or drag to move; on the page "mark" to draw.

export class Timeline {
  constructor(canvas, frames, onSeek) {
    this.canvas = canvas;
    this.frames = frames;
    this.onSeek = onSeek;
    this.model = []; // a model's curve, drawn dashed
    this.onDrag = null; // (frame, progress): set where progress can be drawn
    let isDown = false;
    const act = (event) => {
      const box = canvas.getBoundingClientRect();
      const x = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      const y = Math.max(0, Math.min(1, (event.clientY - box.top - PAD) / (box.height - 2 * PAD)));
      const frame = Math.round(x * (frames - 1));
      if (this.onDrag && event.shiftKey === false) this.onDrag(frame, 1 - y); else onSeek(frame);
    };
    canvas.addEventListener("pointerdown", (event) => { isDown = true; canvas.setPointerCapture(event.pointerId); act(event); });
    canvas.addEventListener("pointermove", (event) => { if (isDown) act(event); });
    canvas.addEventListener("pointerup", () => { isDown = false; });
    const again = () => this.last && this.draw(...this.last);
    new ResizeObserver(again).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  draw(frame, points, events, stages) {
    this.last = [frame, points, events, stages];
    const { canvas } = this, ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== width * ratio) { canvas.width = width * ratio; canvas.height = height * ratio; }
    const style = getComputedStyle(canvas), pen = canvas.getContext("2d");
    const colour = (name) => style.getPropertyValue(name).trim();
    const x = (at) => (this.frames > 1 ? (at / (this.frames - 1)) * width : 0);
    const y = (progress) => PAD + (1 - progress) * (height - 2 * PAD);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = colour("--shade");
    for (const event of events) {
      const end = event.isOpen ? Math.max(frame, event.first) : event.last;
      pen.fillRect(x(event.first) - 1, 0, x(end) - x(event.first) + 2, height);
    }
    pen.strokeStyle = colour("--faint");
    for (const level of [0, 0.5, 1]) { pen.beginPath(); pen.moveTo(0, y(level)); pen.lineTo(width, y(level)); pen.stroke(); }
    pen.font = "11px system-ui, sans-serif";
    stages.forEach((stage, place) => {
      const left = x(Math.max(0, stage.first - 1)), wide = x(stage.last) - left;
      pen.fillStyle = colour(place % 2 ? "--line" : "--accent-soft");
      pen.fillRect(left, height - BAND, wide, BAND);
      pen.fillStyle = colour("--ink");
      pen.fillText(stage.name, left + 3, height - 3, Math.max(1, wide - 6));
    });
    const line = (all) => {
      pen.beginPath();
      all.forEach(([at, progress], place) => (place ? pen.lineTo(x(at), y(progress)) : pen.moveTo(x(at), y(progress))));
      pen.stroke();
    };
    pen.lineWidth = 2;
    pen.strokeStyle = colour("--soft");
    pen.setLineDash([5, 4]);
    line(this.model);
    pen.setLineDash([]);
    pen.strokeStyle = pen.fillStyle = colour("--s0");
    line(points);
    if (points.length < 60) for (const [at, progress] of points) { pen.beginPath(); pen.arc(x(at), y(progress), 4, 0, 7); pen.fill(); }
    pen.fillStyle = colour("--ink");
    pen.fillRect(x(frame) - 1, 0, 2, height);
  }
}

const PAD = 8;
const BAND = 13;
