/* The page of demerit view: a list of any length of which only the visible rows exist, filters kept in the address, and
   the player. /index.json has a column per fact; pictures, curves and videos are fetched when they are looked at. */

const form = byId('filters');
const field = (name) => form.elements[name].value;
const isOn = (name) => form.elements[name].checked;
const view = { index: null, texts: [], apart: [], stale: [], quality: {}, said: null, shown: [], open: -1, opens: 0, rows: new Map(), wish: '' };

/* Reading the index */

const share = (model, value) => (value - data.models[model].low) / (data.models[model].high - data.models[model].low);

/* How far the models are apart at the end; controls count only if there is nothing else to compare. */
function disagreements(index) {
  const all = index.models.map((_, i) => i);
  const real = all.filter((i) => !index.models[i].control);
  const compared = real.length > 1 ? real : all;
  return index.id.map((_, place) => {
    const known = compared.map((i) => [i, index.final[i][place]]).filter(([, value]) => value !== null).map(([i, value]) => share(i, value));
    return known.length > 1 ? Math.max(...known) - Math.min(...known) : null;
  });
}

function addOptions(name, values) {
  for (const value of values) form.elements[name].append(make('option', { value }, value));
}

function readIndex(index) {
  view.index = index;
  data.models = index.models;
  allCurves = {};
  view.texts = index.id.map((id, place) => `${id} ${index.instructions[index.instruction[place]]}`.toLowerCase());
  view.apart = disagreements(index);
  view.stale = index.models.map(() => ({}));
  addOptions('label', [...new Set(index.vouched_by.filter(Boolean))].sort());
  addOptions('kind', [...new Set(Object.values(index.kinds).flat())].sort());
  addOptions('quality', Object.keys(index.quality));
  addOptions('model', index.models.map((model) => model.name));
  byId('by-value').hidden = !index.models.length;
  if (!index.models.length) index.problems.push('No rewards are stored for this dataset: demerit view DATASET --model default makes some.');
  byId('problems').hidden = !index.problems.length;
  byId('problems').append(...index.problems.map((text) => make('div', {}, text)));
}

/* What each model says of the dataset; controls say nothing about success */
function showVerdicts() {
  const lines = data.models.flatMap((model, i) => {
    if (model.control) return [];
    const stale = Object.keys(view.stale[i]).length;
    const counts = make('p', {}, make('b', {}, model.name), ` ${model.counts}`, stale ? `; ${stale} of them stale (demerit score scores them again)` : '');
    return [counts, ...model.warnings.map((text) => make('p', { class: 'alarm' }, text))];
  });
  byId('verdicts').hidden = !lines.length;
  byId('verdicts').replaceChildren(...lines);
}

/* Filters and the address */

function readAddress() {
  const wanted = new URLSearchParams(location.search);
  for (const element of form.elements) {
    if (!element.name || !wanted.has(element.name)) continue;
    if (element.type === 'checkbox') element.checked = wanted.get(element.name) === '1';
    else element.value = wanted.get(element.name);
  }
  for (const select of form.querySelectorAll('select')) if (select.selectedIndex < 0) select.selectedIndex = 0; // a name of another dataset
  view.wish = wanted.get('episode') || '';
}

function writeAddress() {
  const now = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    const isDefault = name === 'model' && (value === data.models[0]?.name || !data.models.length);
    if (value !== '' && !isDefault) now.set(name, value);
  }
  if (view.wish) now.set('episode', view.wish);
  history.replaceState(null, '', `${location.pathname}${now.size ? `?${now}` : ''}`);
}

const outcomeOf = (place) => ({ true: 'yes', false: 'no' }[view.index.success[place]] || 'unknown');
const isStale = (place) => view.stale.some((found) => place in found);

function filter() {
  const { index } = view;
  const words = field('q').toLowerCase().split(/\s+/).filter(Boolean);
  const model = Math.max(0, form.elements.model.selectedIndex);
  const final = index.final[model] || [];
  const measured = view.quality[field('quality')]; // undefined: none is chosen, or they are being measured
  const [least, most, apart, low, high] = ['min', 'max', 'apart', 'low', 'high'].map((name) => (field(name) === '' ? null : Number(field(name))));
  const states = { unscored: (place) => index.why.some((why) => why[place]), stale: isStale };
  const state = states[field('state')];
  const wanted = (place) => words.every((word) => view.texts[place].includes(word))
    && (!field('success') || outcomeOf(place) === field('success'))
    && (!field('label') || (index.vouched_by[place] || 'none') === field('label'))
    && (!field('kind') || (field('kind') === 'none' ? !index.kinds[place] : (index.kinds[place] || []).includes(field('kind'))))
    && (least === null || (final[place] ?? NaN) >= least) && (most === null || (final[place] ?? NaN) <= most)
    && (apart === null || (view.apart[place] ?? NaN) >= apart) && (!state || state(place))
    && (!measured || ((low === null || (measured[place] ?? NaN) >= low) && (high === null || (measured[place] ?? NaN) <= high)));
  view.shown = index.id.map((_, place) => place).filter(wanted);
  const values = { text: (place) => index.instructions[index.instruction[place]], frames: (place) => index.frames[place], value: (place) => final[place], apart: (place) => view.apart[place], quality: (place) => measured?.[place] };
  const value = values[field('sort')];
  const sign = isOn('desc') ? -1 : 1;
  if (value) view.shown.sort((a, b) => compareValues(value(a), value(b), sign));
  else if (sign < 0) view.shown.reverse();
  const [all, some] = [index.id.length, view.shown.length].map((count) => count.toLocaleString('en'));
  byId('count').textContent = some === all ? `${all} episode${all === '1' ? '' : 's'}` : `${some} of ${all} episodes`;
}

function refresh() {
  filter();
  writeAddress();
  for (const row of view.rows.values()) row.remove();
  view.rows.clear();
  byId('list').scrollTop = 0;
  drawRows();
}

/* The list: only rows in sight exist */

const list = byId('list');
const measure = () => {
  const isGrid = isOn('grid');
  const columns = isGrid ? Math.max(2, Math.floor(list.clientWidth / 190)) : 1;
  return { columns, width: list.clientWidth / columns, height: isGrid ? 182 : 85 };
};

function thumbnail(place) {
  const box = make('div', { class: 'thumb' });
  setTimeout(() => { // not for rows that scroll by
    if (!box.isConnected) return;
    const image = make('img', { alt: '', src: `media/${place}.jpg` });
    image.addEventListener('error', () => { box.textContent = 'no video'; });
    box.append(image);
  }, 60);
  return box;
}

function finals(place) {
  const box = make('div', { class: 'finals' });
  view.index.models.forEach((model, i) => {
    const value = view.index.final[i][place];
    const why = view.index.staleness[view.stale[i][place] || 0] || view.index.reasons[view.index.why[i][place]];
    const bar = make('i', { class: model.look });
    if (value !== null) bar.style.setProperty('--share', Math.min(1, Math.max(0, share(i, value))));
    const old = view.stale[i][place] ? 'old' : '';
    const said = make('em', { title: why || '', class: old }, value === null ? '–' : value.toFixed(2));
    const verdict = view.index.reasons[view.index.verdicts[i][place]];
    const [word] = verdict.split(':');
    const look = { success: 'good', failure: 'bad' }[word] || 'muted';
    box.append(make('span', { title: model.name }, model.name), bar, said, make('strong', { title: why || verdict, class: `${look} ${old}` }, word));
  });
  return box;
}

function makeRow(place) {
  const { index } = view;
  const tags = make('span', { class: 'tags' });
  const said = outcomeOf(place);
  if (said !== 'unknown') tags.append(make('span', { class: `tag ${said === 'yes' ? 'good' : 'bad'}` }, said === 'yes' ? 'success' : 'failure'));
  for (const kind of index.kinds[place] || []) tags.append(make('span', { class: 'tag odd' }, kind));
  if (isStale(place)) tags.append(make('span', { class: 'tag alarm' }, 'stale'));
  const what = make('div', { class: 'what' }, make('b', {}, index.instructions[index.instruction[place]] || '(no instruction)'), make('span', { class: 'id' }, index.id[place]), tags);
  const row = make('div', { class: 'row', role: 'option', id: `row-${place}`, 'aria-selected': String(place === view.open) }, thumbnail(place), what, finals(place));
  row.addEventListener('click', () => openPlace(place));
  return row;
}

function drawRows() {
  const { columns, width, height } = measure();
  list.classList.toggle('grid', columns > 1);
  byId('rows').style.height = `${Math.ceil(view.shown.length / columns) * height}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / height) - 2) * columns;
  const last = Math.min(view.shown.length, (Math.ceil((list.scrollTop + list.clientHeight) / height) + 2) * columns);
  const kept = new Set(view.shown.slice(first, last));
  for (const [place, row] of view.rows) if (!kept.has(place)) { row.remove(); view.rows.delete(place); }
  for (let k = first; k < last; k += 1) {
    const place = view.shown[k];
    let row = view.rows.get(place);
    if (!row) { row = makeRow(place); view.rows.set(place, row); byId('rows').append(row); }
    Object.assign(row.style, { top: `${Math.floor(k / columns) * height}px`, left: `${(k % columns) * width}px`, width: `${width}px`, height: `${height}px` });
  }
}

function scrollToOpen() {
  const { columns, height } = measure();
  const top = Math.floor(view.shown.indexOf(view.open) / columns) * height;
  if (top < 0) return;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
}

/* One episode */

function showCameras(place, facts) {
  const cameras = facts.cameras || [];
  byId('camera-box').hidden = cameras.length < 2;
  byId('camera').replaceChildren(...cameras.map(({ name }) => make('option', {}, name)));
  byId('camera').onchange = () => {
    const { frame, video: { paused } } = player;
    data.episodes[place] = { ...facts, ...cameras[byId('camera').selectedIndex] };
    openEpisode(place);
    moveTo(frame);
    if (!paused) togglePlay();
  };
}

function turnCamera() {
  const box = byId('camera');
  if (box.length < 2) return;
  box.selectedIndex = (box.selectedIndex + 1) % box.length;
  box.onchange();
}

function showFacts(facts, notes, verdicts) {
  const box = byId('more-facts');
  const terms = make('dl', {});
  const add = (name, text) => { if (text) terms.append(make('dt', {}, name), make('dd', { class: 'id' }, text)); };
  add('id', facts.id);
  for (const [model, text] of verdicts) add(`${model} says`, text);
  for (const label of facts.labels || []) add('label', label);
  for (const [name, text] of Object.entries(facts.more || {})) add(name, text);
  for (const [name, column] of Object.entries(view.quality)) add(name, column[view.open]?.toString());
  box.replaceChildren(...notes.map((note) => make('p', { class: note.includes(': stale') ? 'alarm' : 'muted' }, note)), terms);
}

async function openPlace(place) {
  view.open = place;
  view.opens += 1;
  const turn = view.opens;
  player.box.setAttribute('aria-busy', 'true');
  view.wish = view.index.id[place];
  writeAddress();
  for (const [at, row] of view.rows) row.setAttribute('aria-selected', String(at === place));
  list.setAttribute('aria-activedescendant', `row-${place}`);
  const answer = await fetch(`/episodes/${place}.json`);
  const found = answer.ok ? await answer.json() : { episode: { id: view.wish, problem: await answer.text() }, curves: { curves: data.models.map(() => null) }, notes: [], verdicts: [] };
  if (view.opens !== turn) return; // another one, or this one again, was opened meanwhile
  data.episodes[place] = found.episode;
  allCurves[place] = found.curves;
  openEpisode(place);
  showCameras(place, found.episode);
  view.said = [found.episode, found.notes, found.verdicts];
  showFacts(...view.said);
  document.title = `${found.episode.id} · demerit view`;
  player.box.setAttribute('aria-busy', 'false');
}

function step(by) {
  if (!view.shown.length) return;
  const now = view.shown.indexOf(view.open);
  const next = now < 0 ? 0 : Math.min(view.shown.length - 1, Math.max(0, now + by));
  openPlace(view.shown[next]);
  scrollToOpen();
  drawRows();
}

player.video.addEventListener('error', async () => {
  const { episode } = player;
  if (player.video.hidden || !episode.link) return;
  const answer = await fetch(episode.link, { headers: { Range: 'bytes=0-1' } });
  if (player.episode !== episode) return; // another one was opened meanwhile
  player.video.hidden = true;
  player.play.disabled = true;
  byId('player-none').hidden = false;
  byId('player-none').textContent = answer.ok ? 'This browser cannot play the video.' : await answer.text();
});

/* Keys and events */

const keys = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), ' ': togglePlay,
  ArrowLeft: (event) => moveTo(stepped(event.shiftKey ? -10 : -1)), ArrowRight: (event) => moveTo(stepped(event.shiftKey ? 10 : 1)),
  '/': () => form.elements.q.focus(), '?': () => byId('help').showModal(), g: () => form.elements.grid.click(), c: turnCamera,
};

document.addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || byId('help').open) return;
  const isField = event.target.closest('input, select');
  if (isField && event.key === 'Escape') event.target.blur();
  if (isField || (event.key === ' ' && event.target.closest('button')) || !keys[event.key]) return;
  if (event.key.startsWith('Arrow') && view.open < 0 && !/Up|Down/.test(event.key)) return;
  event.preventDefault();
  if (event.key.includes('Left') || event.key.includes('Right')) player.video.pause();
  keys[event.key](event);
});

let drawing = 0;
list.addEventListener('scroll', () => { cancelAnimationFrame(drawing); drawing = requestAnimationFrame(drawRows); });
form.addEventListener('input', refresh);
form.addEventListener('submit', (event) => event.preventDefault());
byId('help-open').addEventListener('click', () => byId('help').showModal());

byId('more-filters').open = innerWidth > 860;

/* Reads every episode's signals, so it comes after the list. */
async function loadQuality() {
  const answer = await fetch('/quality.json');
  if (!answer.ok) return;
  view.quality = await answer.json();
  if (view.said) showFacts(...view.said);
  if (field('quality')) refresh();
}

async function start() {
  const answer = await fetch('/index.json');
  if (!answer.ok) { byId('count').textContent = await answer.text(); return; }
  readIndex(await answer.json());
  readAddress();
  showVerdicts();
  refresh();
  performance.mark('ready');
  new ResizeObserver(drawRows).observe(list);
  const wished = view.index.id.indexOf(view.wish);
  if (wished >= 0 || view.shown.length) await openPlace(wished >= 0 ? wished : view.shown[0]);
  scrollToOpen();
  drawRows();
  loadQuality();
  const stale = await fetch('/stale.json');
  if (!stale.ok) return;
  view.stale = await stale.json();
  if (!view.stale.some((found) => Object.keys(found).length)) return;
  const top = list.scrollTop;
  showVerdicts();
  refresh();
  list.scrollTop = top;
}

start();
