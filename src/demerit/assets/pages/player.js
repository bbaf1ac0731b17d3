/* The player: one episode's video and the curves of every model, moved by one cursor.
   A position is a frame of the episode. A clip shows the frames listed in clip.at, the k-th from k / fps on.
   A linked video may have the time of every frame (episode.times). */

const byId = (id) => document.getElementById(id);
const readJson = (id) => JSON.parse(byId(id).textContent);
const data = readJson('data');
let allCurves = null; // parsed when the first episode is opened: by far the largest part of the page
const curvesOf = (index) => (allCurves ??= readJson('curves'))[index];

const SVG = 'http://www.w3.org/2000/svg';
const MARGIN = { left: 30, right: 10, top: 20, bottom: 22 };

function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && typeof value !== 'string') element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const player = {
  box: byId('player'), video: byId('player-video'), chart: byId('player-chart'), play: byId('player-play'),
  index: -1, episode: null, curves: null, frames: 1, frame: 0, hidden: new Set(), address: null, ticking: 0, place: null,
};

/* Frames that one can stop at: those of the clip, or all. */
const stops = () => (player.episode.clip ? player.episode.clip.at : null);
const clipFps = () => (player.episode.clip ? player.episode.clip.fps : player.frames / player.episode.seconds);
const hasVideo = () => !player.video.hidden;

/* The middle of a frame's time: no rounding can show its neighbour. */
function middleOf(place) {
  const { times } = player.episode;
  if (!times) return (place + 0.5) / clipFps();
  return place + 1 < times.length ? (times[place] + times[place + 1]) / 2 : times[place] + 1e-3;
}

function placeAt(seconds) {
  const { times } = player.episode;
  if (!times) return Math.floor(seconds * clipFps() + 1e-3);
  let [low, high] = [0, times.length - 1];
  while (low < high) { // the last frame that has begun
    const half = Math.ceil((low + high) / 2);
    if (times[half] <= seconds + 1e-4) low = half; else high = half - 1;
  }
  return low;
}

function nearestStop(frame) {
  const at = stops();
  const wanted = Math.min(player.frames - 1, Math.max(0, frame));
  if (!at) return Math.round(wanted);
  return at.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), at[0]);
}

function stepped(steps) {
  const at = stops();
  if (!at) return nearestStop(player.frame + steps);
  return at[Math.min(at.length - 1, Math.max(0, at.indexOf(player.frame) + steps))];
}

function moveTo(frame, seek = true) {
  player.frame = nearestStop(frame);
  if (seek && hasVideo()) {
    const place = stops() ? stops().indexOf(player.frame) : player.frame;
    player.video.currentTime = middleOf(place);
  }
  showCursor();
}

/* Opening */

function clipAddress(index) {
  const text = atob(byId(`clip-${index}`).textContent);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: 'video/mp4' }));
}

function loadVideo(index) {
  const { clip, link, problem } = player.episode;
  if (player.address) URL.revokeObjectURL(player.address);
  player.address = clip ? clipAddress(index) : null;
  player.video.hidden = !(clip || link);
  byId('player-none').hidden = !player.video.hidden;
  player.play.disabled = player.video.hidden;
  if (player.video.hidden) {
    player.video.removeAttribute('src');
    byId('player-none').textContent = problem || `The video of this episode is not embedded; --set embed=N embeds more than ${data.embed}.`;
  } else {
    player.video.src = player.address || link;
  }
}

function outcomeWords(episode) {
  const words = [{ true: 'success', false: 'failure' }[episode.success] || 'outcome unknown'];
  if (episode.by) words[0] += ` (${episode.by})`;
  if (episode.grade !== undefined) words.push(`grade ${episode.grade}`);
  if (episode.progress !== undefined) words.push(`progress ${episode.progress}`);
  if (episode.category) words.push(episode.category);
  if (episode.clip && episode.clip.at.length < episode.frames) words.push(`${episode.clip.at.length} of ${episode.frames} frames`);
  if (episode.clip && episode.clip.speed > 1.05) words.push(`${episode.clip.speed}× speed`);
  if (episode.note) words.push(`“${episode.note}”`);
  return words.join(' · ');
}

function openEpisode(index, scroll = false) {
  player.video.pause();
  player.index = index;
  player.episode = data.episodes[index];
  player.curves = curvesOf(index);
  const ends = player.curves.curves.map((curve) => (curve ? (curve[0] ? curve[0].at(-1) : curve[1].length - 1) : 0));
  player.frames = Math.max(player.episode.frames || 0, Math.max(0, ...ends) + 1);
  byId('player-title').textContent = player.episode.instruction || player.episode.id;
  byId('player-facts').textContent = outcomeWords(player.episode);
  for (const button of document.querySelectorAll('#picks button')) button.setAttribute('aria-pressed', String(Number(button.dataset.episode) === index));
  loadVideo(index);
  drawChart();
  moveTo(0);
  if (scroll) {
    byId('examples').scrollIntoView();
    player.chart.focus({ preventScroll: true });
  }
}

/* Drawing */

const look = (index) => data.models[index].look;
const points = (curve) => curve[1].map((value, i) => [curve[0] ? curve[0][i] : i, value]);

function curvePath(curve, low, high, place) {
  let path = '';
  let pen = 'M'; // an unscored frame is a gap, not a bridge
  for (const [frame, value] of points(curve)) {
    if (value === null) { pen = 'M'; continue; }
    const [x, y] = place(frame, (value - low) / (high - low));
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = 'L';
  }
  return path;
}

function drawEvents(svg, place, height) {
  (player.curves.events || []).forEach(([kind, first, last, note], i) => {
    const [left] = place(first - 0.5, 0);
    const right = Math.max(left + 3, place(last + 0.5, 0)[0]);
    const group = draw(svg, 'g', {});
    draw(group, 'title', {}, note ? `${kind}: ${note}` : kind);
    draw(group, 'rect', { class: 'event', x: left, y: MARGIN.top, width: right - left, height });
    draw(group, 'line', { class: 'event-edge', x1: left, x2: left, y1: MARGIN.top - 4, y2: MARGIN.top + height });
    const late = left > svg.clientWidth * 0.6;
    draw(group, 'text', { class: 'event-name', x: late ? right : left, y: MARGIN.top - 7 + (i % 3) * 12, 'text-anchor': late ? 'end' : 'start' }, kind);
  });
}

function drawStages(svg, place, height) {
  (player.curves.stages || []).forEach(([name, first, last], i) => {
    const left = place(first - 0.5, 0)[0];
    const width = place(last + 0.5, 0)[0] - left;
    const group = draw(svg, 'g', {});
    draw(group, 'title', {}, `${name}, frames ${first} to ${last}`);
    draw(group, 'rect', { class: `stage stage-${i % 2}`, x: left, y: MARGIN.top + height - 15, width, height: 15 });
    if (width > 7 * name.length) draw(group, 'text', { class: 'stage-name', x: left + 4, y: MARGIN.top + height - 4 }, name);
  });
}

function drawChart() {
  const box = player.chart;
  const width = box.clientWidth - MARGIN.left - MARGIN.right;
  const height = box.clientHeight - MARGIN.top - MARGIN.bottom;
  const place = (frame, share) => [
    MARGIN.left + (width * Math.min(player.frames - 1, Math.max(0, frame))) / Math.max(1, player.frames - 1),
    MARGIN.top + height * (1 - Math.min(1, Math.max(0, share))),
  ];
  player.place = place;
  box.replaceChildren();
  const svg = draw(box, 'svg', { width: box.clientWidth, height: box.clientHeight, 'aria-hidden': 'true' });
  for (const share of [0, 0.5, 1]) {
    const y = place(0, share)[1];
    draw(svg, 'line', { class: 'frame', x1: MARGIN.left, x2: MARGIN.left + width, y1: y, y2: y });
    draw(svg, 'text', { x: MARGIN.left - 6, y: y + 4, 'text-anchor': 'end' }, share);
  }
  draw(svg, 'text', { x: MARGIN.left, y: MARGIN.top + height + 16 }, 'frame 0');
  draw(svg, 'text', { x: MARGIN.left + width, y: MARGIN.top + height + 16, 'text-anchor': 'end' }, player.frames - 1);
  drawEvents(svg, place, height);
  drawStages(svg, place, height);
  const { truth, curves } = player.curves;
  if (truth && !player.hidden.has('truth')) draw(svg, 'path', { class: 'curve truth', d: curvePath(truth, 0, 1, place) });
  curves.forEach((curve, i) => {
    if (!curve || player.hidden.has(i)) return;
    const { low, high } = data.models[i];
    draw(svg, 'path', { class: `curve ${look(i)}`, 'data-model': data.models[i].name, d: curvePath(curve, low, high, place) });
    const known = points(curve).filter(([, value]) => value !== null);
    if (known.length > 24) return;
    for (const [frame, value] of known) { // few points: show where the model really looked
      const [cx, cy] = place(frame, (value - low) / (high - low));
      draw(svg, 'circle', { class: `dot ${look(i)}`, cx, cy, r: 2.4 });
    }
  });
  player.cursor = draw(svg, 'line', { class: 'cursor', y1: MARGIN.top - 4, y2: MARGIN.top + height });
  player.grip = draw(svg, 'circle', { class: 'grip', r: 5, cy: MARGIN.top + height });
  drawLegend();
}

function legendItem(key, css, name, title) {
  const button = make('button', { type: 'button', title, 'aria-pressed': String(!player.hidden.has(key)) });
  const swatch = draw(button, 'svg', { class: `swatch ${css}`, width: 22, height: 10, 'aria-hidden': 'true' });
  draw(swatch, 'line', { x1: 0, x2: 22, y1: 5, y2: 5 });
  button.append(name, make('b', { 'data-key': String(key) }));
  button.addEventListener('click', () => {
    if (!player.hidden.delete(key)) player.hidden.add(key);
    drawChart();
    showCursor();
    document.querySelector(`#player-legend b[data-key="${key}"]`).parentNode.focus();
  });
  byId('player-legend').append(make('li', {}, button));
}

function drawLegend() {
  byId('player-legend').replaceChildren();
  data.models.forEach((model, i) => legendItem(i, look(i), model.name, model.range));
  if (player.curves.truth) legendItem('truth', 'truth', 'true progress', 'what really happened, 0 to 1');
}

/* The newest value at or before the cursor: what the model had said by then. */
function valueAt(curve, frame) {
  let found;
  for (const [at, value] of curve ? points(curve) : []) if (at <= frame) found = value;
  return found === undefined || found === null ? '–' : Number(found).toFixed(2);
}

function showCursor() {
  const [x] = player.place(player.frame, 0);
  player.cursor.setAttribute('x1', x);
  player.cursor.setAttribute('x2', x);
  player.grip.setAttribute('cx', x);
  for (const value of document.querySelectorAll('#player-legend b')) {
    const { key } = value.dataset;
    value.textContent = valueAt(key === 'truth' ? player.curves.truth : player.curves.curves[key], player.frame);
  }
  const seconds = player.episode.seconds ? ` · ${((player.episode.seconds * player.frame) / player.frames).toFixed(1)} s` : '';
  const text = `frame ${player.frame} of ${player.frames - 1}${seconds}`;
  byId('player-time').textContent = text;
  const values = { 'aria-valuenow': player.frame, 'aria-valuemax': player.frames - 1, 'aria-valuetext': text };
  for (const [name, value] of Object.entries(values)) player.chart.setAttribute(name, value);
}

/* Playing and seeking */

function follow() {
  const place = placeAt(player.video.currentTime);
  const at = stops();
  moveTo(at ? at[Math.min(at.length - 1, place)] : place, false);
  if (!player.video.paused && !player.video.ended) player.ticking = requestAnimationFrame(follow);
}

function togglePlay() {
  if (!hasVideo()) return;
  if (player.video.paused || player.video.ended) player.video.play().catch(() => {}); // an interrupted start is no error
  else player.video.pause();
}

function frameUnder(event) {
  const box = player.chart.getBoundingClientRect();
  return ((event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right)) * (player.frames - 1);
}

function onKey(event) {
  const onButton = event.target.closest('button');
  const moves = { ArrowLeft: () => moveTo(stepped(-1)), ArrowRight: () => moveTo(stepped(1)), Home: () => moveTo(0), End: () => moveTo(player.frames - 1) };
  const action = event.key === ' ' && !onButton ? togglePlay : moves[event.key];
  if (!action || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  if (action !== togglePlay) player.video.pause();
  action();
}

player.video.addEventListener('play', () => { player.play.textContent = 'Pause'; follow(); });
for (const name of ['pause', 'ended']) player.video.addEventListener(name, () => { player.play.textContent = 'Play'; cancelAnimationFrame(player.ticking); });
player.video.addEventListener('click', togglePlay);
player.play.addEventListener('click', togglePlay);
byId('player-back').addEventListener('click', () => { player.video.pause(); moveTo(stepped(-1)); });
byId('player-on').addEventListener('click', () => { player.video.pause(); moveTo(stepped(1)); });
player.box.addEventListener('keydown', onKey);
player.chart.addEventListener('pointerdown', (event) => {
  player.video.pause();
  player.chart.setPointerCapture(event.pointerId);
  moveTo(frameUnder(event));
});
player.chart.addEventListener('pointermove', (event) => { if (event.buttons) moveTo(frameUnder(event)); });
new ResizeObserver(() => { if (player.episode) { drawChart(); showCursor(); } }).observe(player.chart);
for (const button of document.querySelectorAll('#picks button')) {
  button.addEventListener('click', () => {
    openEpisode(Number(button.dataset.episode));
    player.box.scrollIntoView({ block: 'nearest' }); // on a phone the player is above the list
  });
}
