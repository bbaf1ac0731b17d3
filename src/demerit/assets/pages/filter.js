'use strict';
/* A grid of episodes: 60 at a time, so that thousands stay usable. Texts are set as text, never as HTML. */

const rows = JSON.parse(document.getElementById('rows').textContent);
const SHOWN = 60;
const at = (id) => document.getElementById(id);
let first = 0;

function make(tag, text, css) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (css) element.className = css;
  return element;
}

function makeCard(row) {
  const card = make('li', '', row.kept ? '' : 'goes');
  if (row.film) {
    const picture = make('img', '');
    picture.loading = 'lazy';
    picture.alt = `first and last frame of ${row.episode}`;
    picture.src = `data:image/jpeg;base64,${row.film}`;
    card.append(picture);
  } else card.append(make('div', 'no picture', 'blank'));
  const head = make('div', '', 'head');
  head.append(make('span', row.value === null ? '–' : row.value.toFixed(3)), make('span', row.kept ? 'stays' : 'goes'));
  const label = row.label ? `label: ${row.label}` : 'no label';
  card.append(head, make('div', label, 'muted'), make('p', row.reason), make('p', row.instruction), make('p', row.episode, 'muted'));
  return card;
}

function choose() {
  const show = at('show').value, find = at('find').value.toLowerCase(), sort = at('sort').value;
  const sign = sort.startsWith('-') ? -1 : 1, key = sort.replace('-', '');
  const found = rows.filter((row) => (!show || row.kept === (show === 'stays')) &&
    (!find || [row.episode, row.instruction, row.reason, row.label].some((text) => text.toLowerCase().includes(find))));
  const missing = (value) => value === null || value === '';
  return found.sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    return sign * (typeof x === 'string' ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
  });
}

function draw() {
  const found = choose();
  first = Math.max(0, Math.min(first, SHOWN * Math.floor((found.length - 1) / SHOWN)));
  at('grid').replaceChildren(...found.slice(first, first + SHOWN).map(makeCard));
  at('count').textContent = `${found.length} of ${rows.length} episodes`;
  at('page').textContent = found.length ? `${first + 1} to ${Math.min(first + SHOWN, found.length)}` : '';
  at('before').disabled = first === 0;
  at('next').disabled = first + SHOWN >= found.length;
}

for (const id of ['show', 'sort', 'find']) at(id).addEventListener('input', () => { first = 0; draw(); });
for (const [id, step] of [['before', -SHOWN], ['next', SHOWN]]) {
  at(id).addEventListener('click', () => { first += step; draw(); at('grid').focus(); });
}
draw();
